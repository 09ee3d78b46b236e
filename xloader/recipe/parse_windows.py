"""Conversion of the arguments of `window` to windows."""

from __future__ import annotations

import numbers
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final, Literal, get_args

import numpy as np

from xloader.core.option_checks import check_choice
from xloader.core.windows import Pad, Segments, Windows
from xloader.errors import OptionError, UnknownNameError
from xloader.recipe.label_steps import Duration, find_steps, num_elements
from xloader.recipe.recipe import Recipe, find

Size = int | Duration
"""A number of elements, or a duration that is a whole number of steps."""
Gaps = Literal["drop", "raise", "allow"]
"""Whether windows that cross a gap between labels are left out, are an error, or are kept."""
Pads = Mapping[str, Pad]
"""By dimension, the value of the elements beyond its ends."""
NO_PADS: Final[Pads] = MappingProxyType({})
"""No borders are padded."""
_LABEL_RULE: Final = "a dimension of numbers or times, 90 % of whose steps are equal"


def make_windows(
    recipe: Recipe,
    sizes: Mapping[str, Size] | Size | None,
    stride: Mapping[str, Size] | Size | None,
    dilation: Mapping[str, Size] | Size,
    gaps: Mapping[str, Gaps] | Gaps = "drop",
    wrap: Sequence[str] | str = (),
    pad: Pads = NO_PADS,
) -> Windows:
    """Make the windows over the selected dimensions of a recipe."""
    if isinstance(sizes, Mapping):
        for dim in sizes:
            find(dim, recipe.dim_sizes, "dimension")
        dims = tuple(sizes)
    else:
        dims = () if sizes is None else tuple(recipe.dim_sizes)
    if not dims:
        raise OptionError(
            "no dimension has a window",
            allowed=f"sizes along some of {list(recipe.dim_sizes)}",
            remedy="pass the size of a dimension, for example .window(time=6)",
        )
    window_sizes = _per_dim(recipe, "window", dims, sizes, (None,) * len(dims))
    if stride is not None and not isinstance(stride, Mapping) and max(window_sizes) > 1:
        longer = [dim for dim, size in zip(dims, window_sizes, strict=True) if size > 1]
        stride = dict.fromkeys(longer, stride)
    has_stride = () if stride is None else dims
    if isinstance(stride, Mapping):
        has_stride = tuple(stride)
    circles = _circles(recipe, dims, wrap, gaps)
    dilations = _per_dim(recipe, "dilation", dims, dilation, (1,) * len(dims))
    return Windows(
        dims,
        tuple(recipe.dim_sizes[dim] for dim in dims),
        window_sizes,
        _per_dim(recipe, "stride", dims, stride, window_sizes),
        dilations,
        default_dims=tuple(dim for dim in dims if dim not in has_stride),
        segments=_segments(recipe, dims, gaps, circles, pad),
        wraps=tuple(dim in circles for dim in dims),
        pads=_pads(recipe, dims, window_sizes, dilations, pad, circles),
    )


def _pads(
    recipe: Recipe,
    dims: tuple[str, ...],
    window_sizes: tuple[int, ...],
    dilations: tuple[int, ...],
    pad: Pads,
    circles: set[str],
) -> tuple[Pad | None, ...]:
    """The value of elements beyond the ends of each dimension; None without padding."""
    value: Any
    for dim, value in pad.items():
        find(dim, recipe.dim_sizes, "dimension")
        if dim not in dims:
            raise no_windows("pad=", dim, dims)
        number = dims.index(dim)
        is_number = isinstance(value, numbers.Real) and not isinstance(value, bool | np.bool_)
        if value not in ("edge", "reflect") and not is_number:
            raise OptionError(
                f"pad= is not one of its choices along {dim!r}",
                given=repr(value),
                allowed="'edge', 'reflect' or a number",
            )
        if dim in circles:
            raise OptionError(
                f"{dim!r} has no borders to pad, because its windows wrap",
                remedy=f"leave {dim!r} out of pad= or of wrap=",
            )
        if dilations[number] > 1:
            raise OptionError(
                f"dilated windows cannot be padded along {dim!r}",
                given=f"a dilation of {dilations[number]}",
                remedy=f"leave out the dilation of {dim!r}, or leave {dim!r} out of pad=",
            )
        if value == "reflect" and window_sizes[number] % 2 == 0:
            raise OptionError(
                f"a window with an even number of elements cannot be mirrored along {dim!r}",
                given=f"{dim}={window_sizes[number]}",
                allowed="an odd number, so that as many elements lie on both sides of the centre",
                remedy=f'take a window of {window_sizes[number] + 1}, or pad={{{dim!r}: "edge"}}',
            )
    chosen = (pad.get(dim) for dim in dims)
    return tuple(
        value if value is None or isinstance(value, str) else float(value) for value in chosen
    )


def merged_sizes(
    recipe: Recipe, sizes: Mapping[str, Size] | Size | None, by_dim: Mapping[str, Size]
) -> Mapping[str, Size] | Size | None:
    """Combine the sizes of a mapping, or the size of all dimensions, with those of keywords."""
    if not isinstance(sizes, Mapping):
        if not by_dim:
            return sizes
        sizes = {} if sizes is None else dict.fromkeys(recipe.dim_sizes, sizes)
    return {**sizes, **by_dim}


def _circles(
    recipe: Recipe,
    dims: tuple[str, ...],
    wrap: Sequence[str] | str,
    gaps: Mapping[str, Gaps] | Gaps,
) -> set[str]:
    """The dimensions along which windows wrap."""
    circles = {wrap} if isinstance(wrap, str) else set(wrap)
    for dim in circles:
        find(dim, recipe.dim_sizes, "dimension")
        if dim not in dims:
            raise no_windows("wrap=", dim, dims)
        if isinstance(gaps, Mapping) and gaps.get(dim, "allow") != "allow":
            raise OptionError(
                f"windows cannot both wrap and stop at gaps along {dim!r}",
                remedy=f"leave {dim!r} out of wrap= or of gaps=",
            )
        if find_steps(recipe, dim, only_times=True) is not None:
            raise OptionError(
                f"windows cannot wrap along {dim!r}, whose labels are times",
                remedy=f"leave {dim!r} out of wrap=: its first element does not follow its last",
            )
    return circles


def _segments(
    recipe: Recipe,
    dims: tuple[str, ...],
    gaps: Mapping[str, Gaps] | Gaps,
    circles: set[str],
    pad: Pads,
) -> tuple[Segments | None, ...]:
    """The stretches without gaps of each windowed dimension; None where there are no gaps."""
    by_dim = gaps if isinstance(gaps, Mapping) else dict.fromkeys(dims, gaps)
    for dim, choice in by_dim.items():
        if dim not in dims:
            raise no_windows("gaps=", dim, dims)
        check_choice(f"gaps= along {dim!r}", choice, get_args(Gaps))
    is_asked = isinstance(gaps, Mapping)
    all_segments = tuple(
        None
        if dim in circles
        else _segments_along(recipe, dim, by_dim.get(dim, "drop"), is_asked and dim in by_dim)
        for dim in dims
    )
    for dim, segments in zip(dims, all_segments, strict=True):
        if dim in pad and segments is not None:
            raise OptionError(
                f"the borders of {dim!r} cannot be padded, because its labels have gaps",
                given=f"{len(segments.bounds) - 1} gaps",
                remedy=f'pass gaps="allow", or leave {dim!r} out of pad=',
            )
    return all_segments


def _segments_along(recipe: Recipe, dim: str, choice: Gaps, is_asked: bool) -> Segments | None:
    """The stretches of a dimension. Unless the user names it, only times are looked at."""
    steps = None if choice == "allow" else find_steps(recipe, dim, only_times=not is_asked)
    is_unknown = steps is None or (choice == "drop" and not steps.is_regular)
    if is_asked and choice != "allow" and is_unknown:
        raise OptionError(
            f"the gaps along {dim!r} cannot be found",
            given="no labels that are numbers or times"
            if steps is None
            else f"steps between labels: {steps.describe() or 'none'}",
            allowed=_LABEL_RULE,
            remedy=f'pass gaps={{{dim!r}: "allow"}}',
        )
    if steps is None or not len(steps.gaps):
        return None
    if choice == "raise":
        raise OptionError(
            f"the labels of {dim!r} have gaps",
            given=f"steps between labels: {steps.describe()}",
            remedy='fill the gaps, or pass gaps="drop" to leave out the windows that cross them',
        )
    if not steps.is_regular:
        return None
    return Segments.between(recipe.dim_sizes[dim], steps.gaps)


def _per_dim(
    recipe: Recipe,
    word: str,
    dims: tuple[str, ...],
    given: Mapping[str, Size] | Size | None,
    defaults: tuple[int | None, ...],
) -> tuple[int, ...]:
    if isinstance(given, Mapping):
        for dim in given:
            if dim not in dims:
                raise no_windows(f"the {word}", dim, dims)
        values = [given.get(dim, default) for dim, default in zip(dims, defaults, strict=True)]
    else:
        values = list(defaults) if given is None else [given] * len(dims)
    return tuple(
        num_elements(recipe, word, dim, value) for dim, value in zip(dims, values, strict=True)
    )


def no_windows(what: str, dim: str, dims: tuple[str, ...]) -> UnknownNameError:
    """The error for a dimension that no window runs along."""
    return UnknownNameError(
        f"{what} is given for a dimension without windows",
        given=repr(dim),
        allowed=list(dims),
        remedy=f"add {dim!r} to the sizes of .window(...)",
    )
