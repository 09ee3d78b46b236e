"""Looks at a whole store: its variables, chunk grids and labels, and everything that is broken."""

from __future__ import annotations

import json
import math
import os
import warnings
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final, Literal

import numpy as np
import xarray as xr

from xloader.cli.findings import Finding, problems_among, show_findings
from xloader.cli.inspected_variable import (
    InspectedVariable,
    count_nans,
    inspect_variable,
    show_sizes,
)
from xloader.core.messages import show_count
from xloader.core.nbytes import show_nbytes
from xloader.errors import XloaderError
from xloader.recipe.label_steps import find_steps, show_label
from xloader.recipe.recipe import Recipe
from xloader.show.cards import CardPart, CardSection, CardTable, Words, text_of
from xloader.show.json_values import to_json_value, values_by_name
from xloader.sources.open.working_parts import GROUP_DOCUMENTS, WorkingParts, open_working_parts
from xloader.sources.stores.redaction import safe_name

_MOST_LABELS: Final = 1 << 24
"""Coordinates of more values than this are not read."""


@dataclass(frozen=True)
class InspectedLabels:
    """The values of one coordinate.

    Parameters
    ----------
    name : str
        Name of the coordinate.
    dims : tuple of str
        Its dimensions.
    shape : tuple of int
        Its shape.
    dtype : str
        Dtype of its values, decoded.
    units : str
        Units, empty if not known.
    first, last : str
        The first and the last label; of several dimensions, the smallest and the largest where
        these are numbers or times.
    step : str
        The common step in words; empty without one.
    gaps : str
        How many steps differ from it and where the first one is; empty if none does.
    num_duplicates : int
        Labels that come again.
    num_backward : int
        Steps in the direction opposite to most.
    num_missing : int
        Labels that are NaN or no time.
    is_time : bool
        Whether the labels are times, along which windows do not cross gaps by default.
    problem : str
        Why the labels cannot be used; empty if they can.
    """

    name: str
    dims: tuple[str, ...]
    shape: tuple[int, ...]
    dtype: str
    units: str = ""
    first: str = ""
    last: str = ""
    step: str = ""
    gaps: str = ""
    num_duplicates: int = 0
    num_backward: int = 0
    num_missing: int = 0
    is_time: bool = False
    problem: str = ""

    @property
    def text(self) -> str:
        """The labels in one line."""
        if self.problem:
            return self.problem
        size = " x ".join(f"{n:,}" for n in self.shape) or "1"
        if self.first:
            size += f" from {self.first} to {self.last} {self.units}".rstrip()
        elif not self.num_missing and all(self.shape):
            size += ", not read"
        notes = (
            (self.step, f"step {self.step}"),
            (self.gaps, f"steps are irregular: {self.gaps}"),
            (self.num_duplicates, f"{self.num_duplicates:,} more than once"),
            (self.num_backward, f"{self.num_backward:,} out of order"),
            (self.num_missing, f"{self.num_missing:,} missing"),
        )
        return "; ".join([size, *(text for value, text in notes if value)])


def inspect_labels(recipe: Recipe) -> tuple[InspectedLabels, ...]:
    """Look at all coordinates of a recipe's source. Their values are read."""
    coords = recipe.source.coordinates(is_indexed=False).coords
    # Any object may name a coordinate of xarray.
    names = sorted(coords, key=lambda name: (coords[name].dims != (name,), str(name)))
    return tuple(_inspect(recipe, str(name), coords[name]) for name in names)


def _inspect(recipe: Recipe, name: str, labels: xr.DataArray) -> InspectedLabels:
    plain = InspectedLabels(
        name,
        tuple(map(str, labels.dims)),
        tuple(labels.shape),
        str(labels.dtype),
        str(labels.attrs.get("units", "")),
    )
    if labels.size > _MOST_LABELS:
        return plain
    is_line = labels.dims == (name,) and name in recipe.dim_sizes
    try:
        values = np.asarray(labels.variable.values)
        steps = find_steps(recipe, name) if is_line else None
    except XloaderError as error:
        return replace(plain, problem=f"cannot be read ({error})")
    # Labels are read by xarray, whose backends raise errors of many kinds.
    except Exception as error:
        first_line = f"{type(error).__name__}: {error}".splitlines()[0]
        return replace(plain, problem=f"cannot be read ({first_line})")
    is_missing = xr.Variable(labels.dims, values).isnull().values
    kept = values[~is_missing]
    facts: dict[str, Any] = {"num_missing": int(is_missing.sum())}
    if kept.size:
        has_range = values.ndim > 1 and kept.dtype.kind in "biufmM"
        ends = (kept.min(), kept.max()) if has_range else (kept[0], kept[-1])
        facts["first"], facts["last"] = map(show_label, ends)
    if is_line:
        facts["num_duplicates"] = len(kept) - len(set(kept.tolist()))
        if kept.dtype.kind in "iufmMO":
            ascends, descends = kept[1:] > kept[:-1], kept[1:] < kept[:-1]
            facts["num_backward"] = int(min(ascends.sum(), descends.sum()))
    if steps is not None:
        step = steps.text if steps.is_regular else ""
        facts |= {"step": step, "gaps": steps.describe(), "is_time": steps.is_time}
    return replace(plain, **facts)


@dataclass(frozen=True)
class StoreInspection:
    """The findings about a store, its variables and its labels.

    Parameters
    ----------
    name : str
        Where the store is.
    variables : tuple of InspectedVariable
        The variables that can be opened.
    labels : tuple of InspectedLabels
        Their coordinates.
    file_nbytes : int or None
        Bytes of the file, if the store is one file.
    findings : tuple of Finding
        What is broken, and what users should know. Each problem is a fault of the store.
    """

    name: str
    variables: tuple[InspectedVariable, ...]
    labels: tuple[InspectedLabels, ...]
    file_nbytes: int | None
    findings: tuple[Finding, ...]

    @property
    def problems(self) -> tuple[Finding, ...]:
        """The findings that say that something is broken."""
        return tuple(problems_among(self.findings))

    @property
    def grids(self) -> list[dict[str, Any]]:
        """The different chunk grids: sizes by dimension, and the variables that have them."""
        by_grid = self._names_by(lambda held: tuple(zip(held.dims, held.chunks, strict=True)))
        return [{"chunks": dict(grid), "variables": names} for grid, names in by_grid.items()]

    @property
    def differing_dims(self) -> list[str]:
        """The dimensions along which variables have different chunks."""
        sizes: dict[str, set[Any]] = {}
        for variable in self.variables:
            along = zip(variable.dims, variable.chunks, variable.shape, strict=True)
            for dim, size, length in along:
                # A chunk that reaches past the end is as long as the dimension.
                whole = min(size, length) if isinstance(size, int) else size
                sizes.setdefault(dim, set()).add(whole)
        return [dim for dim, different in sizes.items() if len(different) > 1]

    def to_dict(self) -> dict[str, Any]:
        """All attributes, in types that JSON can hold."""
        values = values_by_name(self, "grids", "differing_dims")
        return {name: to_json_value(value) for name, value in values.items()} | {
            "num_problems": len(self.problems)
        }

    def __str__(self) -> str:
        parts: list[CardPart] = [Words([self._title()])]
        if self.variables:
            rows = [variable.row() for variable in self.variables]
            # Columns that say nothing are left out.
            kept = [name for name in rows[0] if {row[name] for row in rows} != {"-"}]
            cells = [[row[name] for name in kept] for row in rows]
            parts.append(CardTable(kept, cells, num_left=4))
            by_path = self._names_by(lambda variable: variable.path)
            paths = [[", ".join(names), path] for path, names in by_path.items()]
            parts.append(_pairs("Reading", paths))
            parts.append(_pairs("Chunk grids", self._grid_rows()))
        parts.append(_pairs("Labels", [[labels.name, labels.text] for labels in self.labels]))
        counted = [variable for variable in self.variables if variable.nans is not None]
        if counted:
            read = show_nbytes(sum(map(_nan_nbytes, counted)))
            shares = [[variable.name, _nans_in_words(variable)] for variable in counted]
            parts.append(_pairs(f"NaN, for which {read} were read and decoded", shares))
        elif self.variables:
            chunks = show_count(sum(variable.num_chunks for variable in self.variables), "chunk")
            nbytes = show_nbytes(sum(variable.nbytes for variable in self.variables))
            words = f"NaN: not counted; --nan reads and decodes {chunks}, {nbytes}"
            parts.append(Words(["", words]))
        if self.findings:
            parts.append(CardSection("Findings", [Words([show_findings(self.findings)])]))
        else:
            parts.append(Words(["", "Nothing is broken."]))
        return text_of(parts)

    def _names_by(self, key: Callable[[InspectedVariable], Hashable]) -> dict[Any, list[str]]:
        names: dict[Any, list[str]] = {}
        for variable in self.variables:
            names.setdefault(key(variable), []).append(variable.name)
        return names

    def _title(self) -> str:
        count = len(self.variables)
        nbytes = sum(variable.nbytes for variable in self.variables)
        title = f"{self.name}: {show_count(count, 'variable')}, {show_nbytes(nbytes)} decoded"
        sizes = [variable.stored_nbytes for variable in self.variables]
        stored = self.file_nbytes
        if stored is None and sizes and None not in sizes:
            stored = sum(size for size in sizes if size is not None)
        if not stored:
            return title
        about = "about " * any(variable.is_estimated for variable in self.variables)
        title += f", {about}{show_nbytes(stored)} stored"
        less, more = sorted((stored, nbytes))
        if not less or f"{more / less:.1f}" == "1.0":
            return title
        return f"{title}: {more / less:.1f} times {'smaller' if stored < nbytes else 'larger'}"

    def _grid_rows(self) -> list[list[str]]:
        rows = [
            [
                ", ".join(grid["variables"]),
                " x ".join(f"{dim} {show_sizes((size,))}" for dim, size in grid["chunks"].items())
                or "one value",
            ]
            for grid in self.grids
        ]
        if self.differing_dims:
            rows.append(["", f"different along {', '.join(self.differing_dims)}"])
        return rows


def inspect_store(
    path: str | os.PathLike[str],
    *,
    variables: Iterable[str] = (),
    group: str | None = None,
    storage_options: Mapping[str, Any] | None = None,
    nan_chunks: int | None = None,
    on_missing: Literal["warn", "fill"] = "warn",
) -> StoreInspection:
    """Look at a store. What is broken becomes a finding, and the rest is looked at nevertheless.

    Labels are read; chunks of data variables only to count NaN.

    Parameters
    ----------
    path : str or os.PathLike
        A path or URL.
    variables : iterable of str
        The data variables; by default all.
    group : str, optional
        Path of the group within the store.
    storage_options : mapping, optional
        Options for the file system of a URL.
    nan_chunks : int, optional
        Read so many chunks of each variable and count NaN; 0 reads all chunks.
    on_missing : {"warn", "fill"}
        Whether absent chunks are a problem, or are absent on purpose.

    Returns
    -------
    StoreInspection
        The variables, labels and findings.

    Raises
    ------
    XloaderError
        If nothing at all can be opened, and no array is found to be the cause.

    Examples
    --------
    >>> import tempfile, numpy as np, xarray as xr
    >>> ds = xr.Dataset({"t2m": (("time", "x"), np.ones((6, 4), "f4"))}, {"time": range(6)})
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     _ = ds.to_zarr(folder, zarr_format=3, consolidated=False)
    ...     found = inspect_store(folder, nan_chunks=0)
    >>> found.variables[0].nans.share, found.labels[0].step, found.problems
    (0.0, '1', ())
    """
    with warnings.catch_warnings():
        # The findings name such folders, in words that users know.
        warnings.filterwarnings("ignore", "Object at .* is not recognized as a component of a Zarr")
        parts = open_working_parts(
            path, variables=variables, group=group, storage_options=storage_options
        )
        return _inspect_parts(parts, os.fspath(path), nan_chunks, on_missing)


def _inspect_parts(
    parts: WorkingParts, path: str, nan_chunks: int | None, on_missing: str
) -> StoreInspection:
    name = safe_name(path)
    findings = [
        Finding(array, "problem", reason, _remedy_of_broken(array))
        for array, reason in parts.broken.items()
    ]
    if parts.source is None:
        return StoreInspection(name, (), (), None, tuple(findings))
    recipe = Recipe(parts.source)
    labels = inspect_labels(recipe)
    inspected = []
    for variable in parts.source.variables.values():
        nans = None if nan_chunks is None else count_nans(recipe, variable.name, nan_chunks or None)
        inspected.append(inspect_variable(parts.source, variable, nans))
        findings += _of_variable(inspected[-1], on_missing)
    findings += [finding for variable in labels for finding in _of_labels(variable)]
    if parts.is_consolidated is False and "://" in path:
        text = "no consolidated metadata: opening asks for each array one by one"
        remedy = "write it with zarr.consolidate_metadata(store)"
        findings.append(Finding("metadata", "note", text, remedy))
    findings += [Finding("note", "note", note) for note in parts.source.notes]
    plain = Path(path).expanduser()
    file_nbytes = plain.stat().st_size if plain.is_file() else None
    return StoreInspection(name, tuple(inspected), labels, file_nbytes, tuple(findings))


def _remedy_of_broken(name: str) -> str:
    if name in GROUP_DOCUMENTS:
        return f"write into it: {json.dumps(GROUP_DOCUMENTS[name])}"
    return "write it again, or leave it out"


def _of_variable(variable: InspectedVariable, on_missing: str) -> list[Finding]:
    unit = "chunk" if variable.shards is None else "shard"
    shape = " x ".join(map(str, variable.shape))
    nans, listed = variable.nans, (variable.num_absent, variable.num_beyond, variable.num_empty)
    num_absent, num_beyond, num_empty = (count or 0 for count in listed)
    all_objects = show_count(variable.num_objects or 0, unit)
    restore = (
        'if they hold nothing on purpose, pass on_missing="fill" to xloader.open; else restore them'
    )
    rows = [
        (
            num_absent,
            f"{num_absent:,} of {all_objects} absent, so their values are the fill value: "
            + _named(variable.absent, num_absent),
            "" if on_missing == "fill" else restore,
        ),
        (
            num_beyond,
            f"{show_count(num_beyond, unit)} outside the shape {shape}, so nothing reads them: "
            + _named(variable.beyond, num_beyond),
            "check the shape and the chunks in its metadata; they may be of another array",
        ),
        (
            num_empty,
            f"{show_count(num_empty, unit)} of 0 bytes: {_named(variable.empty, num_empty)}",
            "write them again; a full disk leaves such files",
        ),
    ]
    if nans is not None and nans.errors:
        count = show_count(nans.num_unreadable, "chunk")
        text = f"{count} cannot be read; the first: {nans.errors[0]}"
        rows.append((nans.num_unreadable, text, "write them again"))
    return [
        Finding(variable.name, "problem" if remedy else "note", text, remedy, count)
        for count, text, remedy in rows
        if count
    ]


def _of_labels(labels: InspectedLabels) -> list[Finding]:
    if labels.problem:
        return [Finding(labels.name, "problem", labels.problem, "write the labels again")]
    is_indexed = labels.dims == (labels.name,)
    rows = (
        (
            labels.num_duplicates if is_indexed else 0,
            f"{show_count(labels.num_duplicates, 'label')} more than once, so .sel cannot use them",
            "leave them out with .isel",
        ),
        (
            labels.num_backward,
            f"{show_count(labels.num_backward, 'label')} out of order",
            "sort the data before writing it",
        ),
        (
            labels.num_missing,
            f"{show_count(labels.num_missing, 'label')} missing",
            "samples at these places have no label; leave them out with .isel if you need it",
        ),
        (
            labels.gaps and labels.is_time,
            f"steps are irregular: {labels.gaps}",
            'windows that cross a gap in time are dropped; .window(gaps="allow") keeps them',
        ),
    )
    return [Finding(labels.name, "note", text, remedy) for count, text, remedy in rows if count]


def _nans_in_words(variable: InspectedVariable) -> str:
    nans = variable.nans
    assert nans is not None, "only what was counted is shown"
    if not variable.num_chunks:
        return "it has no values"
    share = "no value could be read" if nans.share is None else f"{nans.share:.2%} of the values"
    if nans.num_chunks == variable.num_chunks == 1:
        return f"{share} of its one chunk"
    if nans.num_chunks == variable.num_chunks:
        return f"{share} of all {show_count(nans.num_chunks, 'chunk')}"
    return f"{share} of {nans.num_chunks:,} of {variable.num_chunks:,} chunks"


def _nan_nbytes(variable: InspectedVariable) -> int:
    size = math.prod(variable.shape)
    return variable.nans.num_values * variable.nbytes // size if variable.nans and size else 0


def _named(names: Sequence[str], count: int) -> str:
    more = count - len(names)
    return ", ".join(names) + (f" and {more:,} more" if more > 0 else "")


def _pairs(title: str, rows: Sequence[Sequence[str]]) -> CardSection:
    return CardSection(title, [CardTable((), rows, num_left=2)] if rows else [])
