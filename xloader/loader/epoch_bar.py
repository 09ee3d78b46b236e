"""A progress bar over an epoch: batches, decoded bytes a second, and how long training waited."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

from xloader.core.libraries import require_tqdm
from xloader.loader.advice import show_rate

_FORMAT = (
    "{l_bar}{bar}| {n_fmt}/{total_fmt} [{elapsed}<{remaining}, {rate_fmt}, "
    "{decoded} decoded, {waited} waited{postfix}]"
)


class BarCounts(NamedTuple):
    """Counters of the epoch under way, as a bar shows them.

    Parameters
    ----------
    read_nbytes : int
        Decoded bytes of the chunks read.
    seconds, wait_seconds : float
        Seconds from the first request to the last batch, and those in which a batch was waited for.
    """

    read_nbytes: int
    seconds: float
    wait_seconds: float

    @property
    def fields(self) -> dict[str, str]:
        """The texts of the fields of the bar's format."""
        seconds = max(self.seconds, self.wait_seconds)
        if not seconds:
            return {"decoded": show_rate(0), "waited": "0%"}
        waited = f"{self.wait_seconds / seconds:.0%}"
        return {"decoded": show_rate(self.read_nbytes / seconds), "waited": waited}


NOTHING_YET = BarCounts(0, 0.0, 0.0)
"""The counters before the first batch."""


def make_bar(
    batches: Iterable[Any],
    counts: Callable[[], BarCounts],
    defaults: Mapping[str, Any],
    options: Mapping[str, Any],
) -> Any:
    """Make a bar that is iterated in place of a loader.

    Parameters
    ----------
    batches : iterable
        The loader.
    counts : callable
        Gives the counters. It is called when the bar is drawn, and not for each batch.
    defaults, options : mapping
        Keyword arguments of `tqdm.auto.tqdm`. Those of the user come second and win.

    Returns
    -------
    tqdm.tqdm
        The bar.

    Raises
    ------
    MissingDependencyError
        If tqdm is not installed.
    """
    require_tqdm()
    # Imported only here: it looks for a notebook, and imports IPython's widgets there.
    from tqdm.auto import tqdm

    def format_dict(bar: Any) -> dict[str, Any]:
        return {**tqdm.format_dict.fget(bar), **counts().fields}

    kind = type("LoaderBar", (tqdm,), {"format_dict": property(format_dict)})
    return kind(batches, **{"unit": "batch", "bar_format": _FORMAT, **defaults, **options})
