"""Check whether optional libraries are installed."""

from __future__ import annotations

from importlib.util import find_spec

from xloader.core.messages import extra_remedy
from xloader.errors import MissingDependencyError


def require_libraries(names: tuple[str, ...]) -> None:
    """Check that optional libraries are installed, without importing them."""
    missing = [name for name in names if find_spec(name) is None]
    if missing:
        raise _not_installed(f"the demo needs {', '.join(missing)}", "torch,viz")


def require_matplotlib() -> None:
    """Check that pictures can be drawn, without importing matplotlib."""
    if find_spec("matplotlib") is None:
        raise _not_installed("pictures need matplotlib", "viz")


def require_tqdm() -> None:
    """Check that progress bars can be shown, without importing tqdm."""
    if find_spec("tqdm") is None:
        raise _not_installed("progress bars need tqdm", "viz")


def _not_installed(need: str, extras: str) -> MissingDependencyError:
    return MissingDependencyError(need, given="not installed", remedy=extra_remedy(extras))
