"""Shared by all tests: shapes in annotations are checked while the tests run."""

import importlib
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType

import jaxtyping
import pytest
import torch
from hypothesis import settings
from jaxtyping import install_import_hook

# Before linmem is imported for the first time. Arithmetic is checked; what users call checks its own input.
SHAPED = ["autoencoder.solvers", "autoencoder.stack", "kernels", "layers.initial", "layers.sequences"]
install_import_hook([f"linmem.{name}" for name in SHAPED], "beartype.beartype").__enter__()

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


@pytest.fixture(scope="session")
def data_folder() -> Path:
    """Return the folder with the published data, which is not part of linmem."""
    folder = os.environ.get("LINMEM_DATA", "")
    if not folder:
        pytest.skip("LINMEM_DATA names no folder with the published data")
    return Path(folder)


@pytest.fixture(scope="session")
def outcome() -> Callable[[Callable[[Path], object], Path], str]:
    """``outcome(read, path)``: the error's sentence, or the file's name if it was read; other errors go through."""

    def outcome(read: Callable[[Path], object], path: Path) -> str:
        try:
            read(path)
        except ValueError as error:
            return str(error)
        return path.name

    return outcome


@pytest.fixture
def nothing_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Neither data nor a cache, but an empty folder in their place; return the future cache."""
    monkeypatch.delenv("LINMEM_DATA", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "linmem"


TOLERANCE = 1e-12
_largest: dict[str, float] = {}


@pytest.fixture
def unchecked() -> Iterator[None]:
    """Run as users do, without run-time checks of annotations.

    For tests of linmem's own error messages, which the checks would pre-empt, and for torch.compile and
    torch.export, which cannot look into the checks.
    """
    jaxtyping.config.update("jaxtyping_disable", True)
    yield
    jaxtyping.config.update("jaxtyping_disable", False)


@pytest.fixture(scope="session")
def agree() -> Callable[[str, object, object], None]:
    """``agree(what, actual, expected)``: equal to 1e-12; the summary prints the largest difference."""

    def check(what: str, actual: object, expected: object) -> None:
        actual, expected = torch.as_tensor(actual).detach(), torch.as_tensor(expected).detach()
        assert actual.shape == expected.shape
        assert actual.dtype == expected.dtype == torch.float64
        if actual.numel():
            difference = float((actual - expected).abs().max())
            _largest[what] = max(_largest.get(what, 0.0), difference)
            assert difference <= TOLERANCE

    return check


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print how well things agree."""
    if _largest:
        terminalreporter.section("largest differences in float64")
        for what, difference in sorted(_largest.items()):
            terminalreporter.write_line(f"{difference:.1e}  {what}")
