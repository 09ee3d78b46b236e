"""Which shards of a target samples need, and which of them a part of a job writes."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np

from xloader.core.option_checks import is_whole
from xloader.errors import OptionError
from xloader.jobs.covered_elements import CoveredElements
from xloader.jobs.materialize.section_writer import Flags
from xloader.jobs.materialize.target_arrays import TargetArray
from xloader.recipe.layout import make_layouts
from xloader.recipe.recipe import Recipe


def needed_shards(recipe: Recipe, array: TargetArray) -> Flags:
    """Which shards of an array hold an element that some sample needs."""
    job = array.rechunking()
    if recipe.windows is None:
        return np.ones(job.grid, np.bool_)
    covered = CoveredElements(recipe, make_layouts(recipe), array.name)
    if recipe.subset is None:
        whole = covered.of_box(*_stored_box(array, tuple((0, size) for size in job.shape)))
        if whole.is_all:
            return np.ones(job.grid, np.bool_)
    flags = np.zeros(job.grid, np.bool_)
    for shard in itertools.product(*map(range, job.grid)):
        box = job.elements_of(tuple((n, n + 1) for n in shard))
        flags[shard] = not covered.of_box(*_stored_box(array, box)).is_empty
    return flags


def _stored_box(
    array: TargetArray, box: tuple[tuple[int, int], ...]
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """A box of the array as first elements and sizes along all stored dimensions."""
    begins, sizes = [0] * len(array.axes), [1] * len(array.axes)
    for number, (begin, end) in zip(array.kept, box, strict=True):
        begins[number], sizes[number] = begin, end - begin
    return tuple(begins), tuple(sizes)


def parse_part(part: Any) -> tuple[int, int]:
    """Check the option ``part``."""
    if part is None:
        return 0, 1
    is_pair = isinstance(part, tuple | list) and len(part) == 2 and all(map(is_whole, part))
    if not is_pair or not 0 <= part[0] < part[1]:
        raise OptionError(
            "part is not one of several",
            given=repr(part),
            allowed="(i, n) with whole numbers 0 <= i < n",
            remedy="pass part=(0, 4) to part=(3, 4) in four processes",
        )
    return int(part[0]), int(part[1])


def shards_of_part(needed: Flags, part: tuple[int, int]) -> Flags:
    """The shards that one part writes: neighbours, and as many as any other part."""
    number, count = part
    places = np.flatnonzero(needed)
    own = np.zeros(needed.shape, np.bool_)
    own.flat[places[number * len(places) // count : (number + 1) * len(places) // count]] = True
    return own
