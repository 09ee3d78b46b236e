"""The options of a loader, and the checks of their values."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any, Final, Literal, TypedDict, Unpack, get_args

from xloader.core.cores import usable_cores
from xloader.core.messages import closest
from xloader.core.nans import OnNan
from xloader.core.nbytes import parse_nbytes
from xloader.core.option_checks import (
    MOST,
    MOST_PROCESSES,
    MOST_THREADS,
    check_callable,
    check_choice,
    check_number,
    check_whole,
    is_whole,
)
from xloader.core.output_dtypes import OutputDtype
from xloader.core.ranks import World, resolve_world
from xloader.core.retry_policy import RetryPolicy
from xloader.errors import LanesError, OptionError

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


@dataclass(frozen=True)
class LoaderOptions:
    """The checked options of `Samples.loader`.

    :meth:`xloader.Samples.loader` describes each option. Both have the same defaults.
    """

    batch_size: int = 32
    shuffle: bool = True
    seed: int = 0
    drop_last: bool = False
    memory: int | str = "2GiB"
    output: OutputKind = "torch"
    output_dtype: OutputDtype | None = None
    device: Any = None
    device_transform: Callable[..., Any] | None = None
    device_random: bool = False
    # Tensors cannot be compared for a single answer.
    out: Any = field(default=None, compare=False)
    collate_fn: Callable[[list[tuple[Any, ...]]], Any] | None = None
    threads: int | None = None
    processes: int = 0
    prefetch: int = 2
    on_error: Literal["raise", "skip"] = "raise"
    max_amplification: float = 1.05
    lanes: int | None = None
    spread: int | None = None
    rank: int | None = None
    world_size: int | None = None
    read_timeout: float | None = None
    max_retries: int | None = None
    on_nan: OnNan = "warn"
    memory_nbytes: int = field(init=False)

    def __post_init__(self) -> None:
        self._check_numbers()
        check_choice("output", self.output, get_args(OutputKind))
        self._check_output_dtype()
        check_choice("on_error", self.on_error, ("raise", "skip"))
        check_choice("on_nan", self.on_nan, get_args(OnNan))
        for name in ("shuffle", "drop_last", "device_random"):
            check_choice(name, getattr(self, name), (True, False))
            object.__setattr__(self, name, bool(getattr(self, name)))
        check_callable("collate_fn", self.collate_fn)
        check_callable("device_transform", self.device_transform)
        self._check_device()
        object.__setattr__(self, "memory_nbytes", parse_nbytes(self.memory))
        RetryPolicy().but(self.read_timeout, self.max_retries)
        if self.rank is not None or self.world_size is not None:
            resolve_world(self.rank, self.world_size)
            self._check_lanes()

    def settled(self) -> LoaderOptions:
        """Copy of the options with the rank and the world size that this process has now.

        They are the given ones, or found by `resolve_world`.
        """
        world = resolve_world(self.rank, self.world_size)
        return replace(self, rank=world.rank, world_size=world.world_size)

    @property
    def collates_in_processes(self) -> bool:
        """Whether worker processes call ``collate_fn``: it gets batches as they are gathered."""
        return bool(self.processes) and self.collate_fn is not None and self.device is None

    def for_process(self) -> LoaderOptions:
        """Copy of the options for a worker process, without what is done after it."""
        return replace(
            self,
            device=None,
            device_transform=None,
            device_random=False,
            out=None,
            collate_fn=self.collate_fn if self.collates_in_processes else None,
        )

    @property
    def world(self) -> World:
        """Rank and world size as in the options; a single process if they are not given."""
        return World(self.rank or 0, self.world_size or 1)

    @property
    def global_batch(self) -> int:
        """Number of samples of a step on all ranks together."""
        return self.batch_size * self.world.world_size

    @property
    def num_lanes(self) -> int:
        """Number of lanes on all ranks together; by default one for each rank."""
        return self.lanes or self.world.world_size

    @property
    def carried_lanes(self) -> int:
        """Number of lanes that must fit in one process's memory.

        All of them if ``lanes`` is given, because a later run may have only one rank; otherwise
        those of a rank.
        """
        return self.lanes or 1

    @property
    def num_threads(self) -> int:
        """Number of threads; by default the cores of this process, or its share of them."""
        return usable_cores() if self.threads is None else self.threads

    def _check_numbers(self) -> None:
        """Check the numbers and convert NumPy's to Python's, which can be written as JSON."""
        for name, least, most in (
            ("batch_size", 1, MOST),
            # The range of torch.manual_seed; beyond it, different seeds would give the same order.
            ("seed", -(2**63), 2**64 - 1),
            ("prefetch", 0, MOST),
            ("threads", 1, MOST_THREADS),
            ("processes", 0, MOST_PROCESSES),
            ("lanes", 1, MOST),
            ("spread", 0, MOST),
            ("rank", -MOST, MOST),
            ("world_size", -MOST, MOST),
        ):
            value = getattr(self, name)
            # None is allowed where it is the default.
            if value is None and getattr(type(self), name) is None:
                continue
            object.__setattr__(self, name, check_whole(name, value, least, most))
        name = "max_amplification"
        object.__setattr__(self, name, check_number(name, self.max_amplification, 1.0))

    def _check_device(self) -> None:
        for name in ("device", "device_transform", "out"):
            value = getattr(self, name)
            if value is not None and self.output != "torch":
                shown = repr(value) if name == "device" else f"a {type(value).__name__}"
                remedy = _WITHOUT_DEVICE.get(self.output, 'pass output="torch"')
                raise OptionError(
                    f"{name} is for tensors of PyTorch",
                    given=f"{name}={shown}, output={self.output!r}",
                    allowed='output="torch"',
                    remedy=f"{remedy}, or leave {name}= out",
                )
        if self.device_random and self.device_transform is None:
            raise OptionError(
                "device_random has no function to give random numbers to",
                given="device_random=True, device_transform=None",
                allowed="device_random=True with a device_transform",
                remedy="pass device_transform=fn, called as fn(batch, rng)",
            )

    def _check_output_dtype(self) -> None:
        allowed = (None, *get_args(OutputDtype))
        remedy = 'pass the name as text, for example output_dtype="bfloat16"'
        check_choice("output_dtype", self.output_dtype, allowed, remedy)
        without = {"numpy": "NumPy", "cupy": "CuPy"}
        if self.output_dtype == "bfloat16" and self.output in without:
            raise OptionError(
                f"{without[self.output]} has no bfloat16",
                given=f'output_dtype="bfloat16", output="{self.output}"',
                allowed=f'output_dtype="float16" or "float32" with output="{self.output}"',
                remedy='pass output="torch" or output="jax", or output_dtype="float16"',
            )

    def _check_lanes(self) -> None:
        check_whole("batch_size * world_size", self.global_batch, 1, MOST)
        ranks = self.world.world_size
        if self.num_lanes % ranks:
            raise LanesError(
                "the ranks do not divide the lanes",
                given=f"lanes={self.num_lanes}, world_size={ranks}",
                allowed=f"multiples of {ranks}",
                remedy=f"choose the number of ranks from {divisors_of(self.num_lanes)}; or, for a "
                f"new training run, pass lanes={ranks} or a multiple of it",
            )
        if self.global_batch % self.num_lanes:
            raise LanesError(
                "the lanes do not divide the global batch",
                given=f"lanes={self.num_lanes}, a global batch of {self.global_batch}",
                allowed=f"one of {[n for n in divisors_of(self.global_batch) if n % ranks == 0]}",
                remedy="pass one of these as lanes=, or another batch_size=",
            )


_WITHOUT_DEVICE = {
    "jax": "move batches with jax.device_put(batch.as_dict(), device)",
    "cupy": "choose the GPU with cupy.cuda.Device(0).use() before the loop",
}
"""By output that takes no ``device``, how arrays come to one."""

_OF_TORCH = {
    "num_workers": "pass threads=, the number of threads that load, or processes=",
    "workers": "pass threads=, the number of threads that load, or processes=",
    "prefetch_factor": "pass prefetch=, the number of batches to prepare ahead",
    "persistent_workers": "leave it out: threads and processes= serve all epochs of a loader",
    "pin_memory": "leave it out, and pass device=",
    "sampler": "choose samples with .select and .weighted, and the order with shuffle= and seed=",
    "batch_sampler": "choose samples with .select and .weighted, and batches with batch_size=",
    "generator": "pass seed=",
    "worker_init_fn": "leave it out: nothing needs to be set in the processes of processes=",
}
"""By argument of PyTorch's ``DataLoader``, the advice on the option to use here instead."""


def divisors_of(number: int) -> list[int]:
    """List the divisors of a positive number, ascending."""
    small = [n for n in range(1, math.isqrt(number) + 1) if number % n == 0]
    return sorted({*small, *(number // n for n in small)})


def make_options(**options: Unpack[LoaderKeywords]) -> LoaderOptions:
    """Make the options of a loader from keyword arguments, and refuse unknown names."""
    refuse_unknown(options)
    return LoaderOptions(**options)


def refuse_unknown(options: Mapping[str, Any]) -> None:
    """Refuse names that no option of a loader has."""
    known = [f.name for f in fields(LoaderOptions) if f.init]
    for name, value in options.items():
        if name not in known:
            close = closest(name, known)
            raise OptionError(
                f"a loader has no option {name!r}",
                given=f"{name}={value!r}",
                allowed=", ".join(known),
                remedy=_OF_TORCH.get(name) or (f"did you mean {close!r}?" if close else ""),
            )


def check_epoch(epoch: Any) -> int:
    """Check the number of an epoch, and convert it to ``int``."""
    if not is_whole(epoch) or not 0 <= epoch < 1 << 63:
        raise OptionError(
            "there is no such epoch", given=epoch, allowed="whole numbers from 0 to 2**63 - 1"
        )
    return int(epoch)
