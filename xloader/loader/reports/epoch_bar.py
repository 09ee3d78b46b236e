"""A progress bar over an epoch: batches, decoded bytes a second, and how long training waited."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple, Protocol

from xloader.core.libraries import require_tqdm
from xloader.loader.reports.advice import show_rate

_FORMAT = (
    "{l_bar}{bar}| {n_fmt}/{total_fmt} [{elapsed}<{remaining}, {rate_fmt}, "
    "{decoded} decoded, {waited} waited{postfix}]"
)


class BarCounts(NamedTuple):
    """Counters of the epoch under way, as a bar shows them.

    `seconds, wait_seconds`: seconds from the first request to the last batch, and those in which a
    batch was waited for.
    """

    begin: float
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


NOTHING_YET = BarCounts(0.0, 0, 0.0, 0.0)
"""The counters before the first batch."""


class CountedLoader(Protocol):
    """A loader whose epochs have bars."""

    @property
    def epoch(self) -> int:
        """Number of the epoch that comes next."""

    @property
    def rank(self) -> int:
        """Number of this process."""

    def __len__(self) -> int: ...

    def __iter__(self) -> Iterator[Any]: ...


def make_bar(
    loader: CountedLoader,
    count: Callable[[], BarCounts],
    first_step: int,
    options: Mapping[str, Any],
) -> Any:
    """Make a bar that is iterated in place of a loader."""
    require_tqdm()
    # Imported only here: it looks for a notebook, and imports IPython's widgets there.
    from tqdm.auto import tqdm

    before = count().begin

    def format_dict(bar: Any) -> dict[str, Any]:
        counts = count()
        # Until the first batch is asked for, the counters are those of another epoch.
        shown = NOTHING_YET if counts.begin == before else counts
        return {**tqdm.format_dict.fget(bar), **shown.fields}

    bar_class = type("LoaderBar", (tqdm,), {"format_dict": property(format_dict)})
    defaults = {
        "desc": f"epoch {loader.epoch}",
        "total": len(loader),
        "initial": first_step,
        "disable": loader.rank != 0,
        "unit": "batch",
        "bar_format": _FORMAT,
    }
    return bar_class(loader, **{**defaults, **options})
