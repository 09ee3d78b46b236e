"""Conversion of the arguments of `window` to windows."""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence
from typing import Any, Final, Literal, get_args

from xloader.core.segments import Segments
from xloader.core.windows import Windows
from xloader.errors import OptionError, UnknownNameError, WindowError
from xloader.recipe.durations import Duration, is_duration, num_steps
from xloader.recipe.label_steps import find_steps
from xloader.recipe.recipe import Recipe, find

Size = int | Duration
"""A number of elements, or a duration that is a whole number of steps."""
Gaps = Literal["drop", "raise", "allow"]
"""Whether windows that cross a gap between labels are left out, are an error, or are kept."""
_LABEL_RULE: Final = "a dimension of numbers or times, 90 % of whose steps are equal"


def make_windows(
    recipe: Recipe,
    sizes: Mapping[str, Size] | Size | None,
    stride: Mapping[str, Size] | Size | None,
    dilation: Mapping[str, Size] | Size,
    gaps: Mapping[str, Gaps] | Gaps = "drop",
    wrap: Sequence[str] | str = (),
) -> Windows:
    """Make the windows over the selected dimensions of a recipe.

    Parameters
    ----------
    recipe : Recipe
        The recipe to window.
    sizes : int or mapping of str to int
        Elements of a window along each dimension; an int applies to every dimension.
    stride : int or mapping of str to int, optional
        Distance in elements from one window's start to the next; by default, the window's size.
    dilation : int or mapping of str to int
        Distance in elements between neighbouring elements of a window; 1 for a dimension that a
        mapping does not name.
    gaps : {"drop", "raise", "allow"} or mapping of str to these
        What to do about windows that cross a gap between labels, as for `Samples.window`.
    wrap : str or sequence of str
        Dimensions whose first element follows their last one, as for `Samples.window`.

    Returns
    -------
    Windows
        The windows.

    Raises
    ------
    OptionError
        If no dimension is given, a number is not whole, or windows are to wrap along a dimension
        of times or across gaps.
    UnknownNameError
        If a dimension does not exist, or a stride, dilation or wrap is for one without windows.
    WindowError
        If a number is below 1, a window is longer than its dimension, there are more windows than
        `xloader.core.windows.MOST_WINDOWS`, or there are gaps and they are to raise.
    EmptySamplesError
        If every window crosses a gap.
    """
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
    circles = _circles(recipe, dims, wrap, gaps)
    return Windows(
        dims,
        tuple(recipe.dim_sizes[dim] for dim in dims),
        window_sizes,
        _per_dim(recipe, "stride", dims, stride, window_sizes),
        _per_dim(recipe, "dilation", dims, dilation, (1,) * len(dims)),
        default_dims=_without_stride(dims, stride),
        segments=_segments(recipe, dims, gaps, circles),
        wraps=tuple(dim in circles for dim in dims),
    )


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
            raise _no_windows("wrap=", dim, dims)
        if isinstance(gaps, Mapping) and gaps.get(dim, "allow") != "allow":
            raise OptionError(
                f"windows cannot both wrap and stop at gaps along {dim!r}",
                given=f"wrap={dim!r} and gaps={{{dim!r}: {gaps[dim]!r}}}",
                allowed="one of them for each dimension",
                remedy=f"leave {dim!r} out of wrap= or of gaps=",
            )
        if find_steps(recipe, dim, only_times=True) is not None:
            raise OptionError(
                f"windows cannot wrap along {dim!r}, whose labels are times",
                given=f"wrap={dim!r}",
                allowed="dimensions whose first element follows their last one, such as longitudes "
                "of the whole globe",
                remedy=f"leave {dim!r} out of wrap=",
            )
    return circles


def _segments(
    recipe: Recipe,
    dims: tuple[str, ...],
    gaps: Mapping[str, Gaps] | Gaps,
    circles: set[str],
) -> tuple[Segments | None, ...]:
    """The stretches without gaps of each windowed dimension; None where there are no gaps."""
    by_dim = gaps if isinstance(gaps, Mapping) else dict.fromkeys(dims, gaps)
    for dim, choice in by_dim.items():
        if dim not in dims:
            raise _no_windows("gaps=", dim, dims)
        if choice not in get_args(Gaps):
            raise OptionError(
                f"gaps= is not one of its choices along {dim!r}",
                given=repr(choice),
                allowed=", ".join(map(repr, get_args(Gaps))),
            )
    is_asked = isinstance(gaps, Mapping)
    return tuple(
        None
        if dim in circles
        else _segments_along(recipe, dim, by_dim.get(dim, "drop"), is_asked and dim in by_dim)
        for dim in dims
    )


def _segments_along(recipe: Recipe, dim: str, choice: Gaps, is_asked: bool) -> Segments | None:
    """The stretches of one dimension.

    Only times are looked at, unless the user names the dimension (``is_asked``).
    """
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
        raise WindowError(
            f"the labels of {dim!r} have gaps",
            given=f"steps between labels: {steps.describe()}",
            allowed="steps of equal length",
            remedy='fill the gaps, or pass gaps="drop" to leave out the windows that cross them',
        )
    if not steps.is_regular:
        return None
    return Segments.between(recipe.dim_sizes[dim], steps.gaps)


def _without_stride(
    dims: tuple[str, ...], stride: Mapping[str, Size] | Size | None
) -> tuple[str, ...]:
    if isinstance(stride, Mapping):
        return tuple(dim for dim in dims if dim not in stride)
    return dims if stride is None else ()


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
                raise _no_windows(f"the {word}", dim, dims)
        values = [given.get(dim, default) for dim, default in zip(dims, defaults, strict=True)]
    else:
        values = list(defaults) if given is None else [given] * len(dims)
    return tuple(_whole(recipe, word, dim, value) for dim, value in zip(dims, values, strict=True))


def _no_windows(what: str, dim: str, dims: tuple[str, ...]) -> UnknownNameError:
    return UnknownNameError(
        f"{what} is given for a dimension without windows",
        given=repr(dim),
        allowed=list(dims),
        remedy=f"add {dim!r} to the sizes of .window(...)",
    )


def _whole(recipe: Recipe, word: str, dim: str, value: Any) -> int:
    if is_duration(value):
        value = num_steps(recipe, word, dim, value)
    try:
        if isinstance(value, bool):
            raise TypeError
        count = operator.index(value)
    except TypeError:
        raise OptionError(
            f"the {word} along {dim!r} is not a whole number",
            given=repr(value),
            allowed="a whole number of elements >= 1",
            remedy='pass a number of elements, or a duration such as "3D", not a label',
        ) from None
    if count < 1:
        raise WindowError(
            f"the {word} along {dim!r} is too small",
            given=count,
            allowed="a whole number of elements >= 1",
            remedy=f"pass 1 or more, or leave {dim!r} out to take all of it"
            if word == "window"
            else f"pass {word}={{{dim!r}: 1}} or more",
        )
    return count
