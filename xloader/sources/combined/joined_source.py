"""Several sources as one: the variables of all of them, and their coordinates together."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cached_property, partial

import xarray as xr

from xloader.sources.base import Source
from xloader.sources.combined.mixed_source import MixedSource
from xloader.sources.combined.source_view import SourceView
from xloader.sources.label_spans import order_notes
from xloader.sources.per_process import PerProcess


class JoinedViews:
    """The name, the coordinates and the notes of views that are offered as one source."""

    def __init__(self, views: tuple[SourceView, ...], name: str, notes: tuple[str, ...]) -> None:
        self._views = views
        self.name = name
        self._notes = notes
        # Made anew in a forked child, where each source says whether it may be used there.
        self._coordinates, self._labels = (
            PerProcess(partial(_merged, views, is_indexed), name, is_remade=True)
            for is_indexed in (True, False)
        )

    @cached_property
    def notes(self) -> tuple[str, ...]:
        """The given notes, and those on dimensions that differ in the order of labels alone."""
        coords = self._coordinates.get()
        return (*self._notes, *order_notes(coords, coords.indexes))

    def coordinates(self, *, is_indexed: bool = True) -> xr.Dataset:
        """The coordinates of all views; see `Source.coordinates`."""
        return (self._coordinates if is_indexed else self._labels).get()

    def __reduce__(self) -> tuple[object, ...]:
        return JoinedViews, (self._views, self.name, self._notes)


def one_source(
    views: Sequence[SourceView],
    name: str = "",
    notes: Sequence[str] = (),
    variables: Iterable[str] = (),
) -> MixedSource:
    """Offer views as one source."""
    owners: dict[str, Source] = {}
    for view in views:
        owners.update(view.owners())
    owners = {variable: owners[variable] for variable in (*variables, *owners)}
    return MixedSource(owners, JoinedViews(tuple(views), name or views[0].name, tuple(notes)))


def _merged(views: Sequence[SourceView], is_indexed: bool) -> xr.Dataset:
    every = [view.coordinates(is_indexed=is_indexed) for view in views]
    # With these options nothing is compared, so nothing is read.
    return xr.merge(every, compat="override", join="override")
