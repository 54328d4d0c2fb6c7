"""Shared by all tests: shapes in annotations are checked while the tests run."""

import os

from hypothesis import settings
from jaxtyping import install_import_hook

# Before linmem is imported for the first time. The arithmetic is checked; what users call checks its own input.
SHAPED = ["linmem.autoencoder.solvers", "linmem.autoencoder.stack", "linmem.kernels"]
install_import_hook(SHAPED, "beartype.beartype").__enter__()

settings.register_profile("default", deadline=None, max_examples=40, derandomize=True)
settings.register_profile("thorough", deadline=None, max_examples=1000)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "default"))
