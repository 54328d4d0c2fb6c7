"""Fixtures for the layers."""

from collections.abc import Callable, Iterator

import jaxtyping
import pytest
import torch

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
