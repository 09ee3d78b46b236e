"""Numbers of things as text: ``1 batch``, ``2,048 batches``."""

from __future__ import annotations

from typing import Final

_HISSES: Final = ("s", "x", "sh", "tch")


def show_count(count: float, thing: str) -> str:
    """Format a number of things, with the plural where the number is not one.

    Parameters
    ----------
    count : int or float
        Number of things; a whole one has commas between thousands.
    thing : str
        One thing, in few words of which the last is the noun: ``"chunk"``, ``"source chunk"``.

    Returns
    -------
    str
        The number and the thing.

    Examples
    --------
    >>> show_count(1, "sample"), show_count(2048, "source chunk"), show_count(0, "batch")
    ('1 sample', '2,048 source chunks', '0 batches')
    >>> show_count(1.5, "epoch")
    '1.5 epochs'
    """
    number = f"{int(count):,}" if count == int(count) else f"{count:,g}"
    return f"{number} {thing if count == 1 else _plural(thing)}"


def _plural(thing: str) -> str:
    return thing + ("es" if thing.endswith(_HISSES) else "s")
