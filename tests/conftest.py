"""Shared by all tests: shapes in annotations are checked while they run, and torch is deterministic."""

import importlib
import os
import sys
from types import ModuleType

import pytest
from jaxtyping import install_import_hook

# Before linmem is imported for the first time, so that every annotated function is checked.
_hook = install_import_hook("linmem", "beartype.beartype")
_hook.__enter__()

from hypothesis import settings  # noqa: E402

settings.register_profile("default", deadline=None, max_examples=40, derandomize=True)
settings.register_profile("thorough", deadline=None, max_examples=1000)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "default"))


@pytest.fixture(scope="session")
def plain_linmem() -> ModuleType:
    """Return linmem without the checks, as users import it: torch.compile and torch.export need that."""
    checked = {name: sys.modules.pop(name) for name in list(sys.modules) if name.split(".")[0] == "linmem"}
    hooks, sys.meta_path[:] = list(sys.meta_path), [f for f in sys.meta_path if "jaxtyping" not in repr(f)]
    plain = importlib.import_module("linmem")
    sys.meta_path[:] = hooks
    sys.modules.update(checked)
    return plain
