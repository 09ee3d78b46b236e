"""Numbers of things as text: ``1 batch``, ``2,048 batches``."""

from __future__ import annotations

from typing import Final

_HISSES: Final = ("s", "x", "sh", "tch")


def show_count(count: float, thing: str) -> str:
    """Format a number of things, with the plural where the number is not one."""
    number = f"{int(count):,}" if count == int(count) else f"{count:,g}"
    return f"{number} {thing if count == 1 else _plural(thing)}"


def _plural(thing: str) -> str:
    return thing + ("es" if thing.endswith(_HISSES) else "s")
