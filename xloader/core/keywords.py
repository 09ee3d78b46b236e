"""The options of a loader as keyword arguments, for type checkers and editors.

`LoaderOptions` has the defaults and the checks, and :meth:`xloader.Samples.loader` the description
of each option. Functions that hand options on take ``**options: Unpack[LoaderKeywords]``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, Literal, TypedDict

from xloader.core.nans import OnNan
from xloader.core.output_dtypes import OutputDtype

OutputKind = Literal["torch", "numpy", "jax", "cupy"]
"""The library whose arrays are delivered."""


class PlanKeywords(TypedDict, total=False):
    """Options that mean the same in `Samples.loader` and under a PyTorch ``DataLoader``."""

    lanes: int | None
    max_amplification: float
    max_retries: int | None
    on_error: Literal["raise", "skip"]
    read_timeout: float | None
    spread: int | None
    threads: int | None


class LoaderKeywords(PlanKeywords, total=False):
    """All options of `Samples.loader`, each of which may be left out."""

    batch_size: int
    shuffle: bool
    seed: int
    drop_last: bool
    memory: int | str
    output: OutputKind
    output_dtype: OutputDtype | None
    device: Any
    device_transform: Callable[..., Any] | None
    device_random: bool
    out: Any
    collate_fn: Callable[[list[tuple[Any, ...]]], Any] | None
    processes: int
    prefetch: int
    rank: int | None
    world_size: int | None
    on_nan: OnNan


PLAN_OPTIONS: Final = tuple(sorted(PlanKeywords.__optional_keys__))
"""Names of the options in `PlanKeywords`."""
