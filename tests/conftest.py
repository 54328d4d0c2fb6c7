"""Shared by all tests: shapes in annotations are checked while they run, and torch is deterministic."""

import os

from jaxtyping import install_import_hook

# Before linmem is imported for the first time, so that every annotated function is checked.
_hook = install_import_hook("linmem", "beartype.beartype")
_hook.__enter__()

from hypothesis import settings  # noqa: E402

settings.register_profile("default", deadline=None, max_examples=40, derandomize=True)
settings.register_profile("thorough", deadline=None, max_examples=1000)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "default"))
