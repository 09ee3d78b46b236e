"""The options of a loader, and the checks of their values."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any, Final, Literal, TypedDict, TypeVar, Unpack, get_args

from xloader.core.cores import MemoryLimit, usable_cores
from xloader.core.messages import closest
from xloader.core.nans import OnNan
from xloader.core.nbytes import MemoryShare, as_share, parse_nbytes, show_nbytes
from xloader.core.option_checks import (
    MOST,
    MOST_PROCESSES,
    MOST_THREADS,
    check_callable,
    check_choice,
    check_kind,
    check_number,
    check_whole,
    is_whole,
)
from xloader.core.output_dtypes import OutputDtype
from xloader.core.ranks import World, resolve_world
from xloader.errors import OptionError

OutputKind = Literal["torch", "numpy", "jax", "cupy"]
"""The library whose arrays are delivered."""


@dataclass(frozen=True, kw_only=True)
class PlanRules:
    """Bounds of the plan, for ``plan`` of a loader.

    Parameters
    ----------
    max_amplification : float, default 1.05
        Mean number of reads per chunk in an epoch, at most. With 2 or more, the plan may read a
        chunk several times, each time for a part of its samples, if that mixes better.
    lanes : int, optional
        Independent parts of the order, which ranks and processes divide among them; by default one
        for each. If given, batches are the same on any number of ranks that divides it.
    spread : int, optional
        How many later tiles come in while a tile hands out its samples; by default as many as the
        memory allows.

    Raises
    ------
    OptionError
        If a value is outside its range.

    Examples
    --------
    >>> import numpy as np, xarray as xr, xloader
    >>> ds = xr.Dataset({"t2m": (("time", "x"), np.arange(40.0).reshape(10, 4))})
    >>> samples = xloader.open(ds).window(time=2)
    >>> rules = xloader.PlanRules(lanes=4)
    >>> len(samples.loader(batch_size=4, plan=rules, output="numpy"))
    2
    """

    max_amplification: float = 1.05
    lanes: int | None = None
    spread: int | None = None

    def __post_init__(self) -> None:
        most = check_number("max_amplification", self.max_amplification, 1.0)
        object.__setattr__(self, "max_amplification", most)
        for name, least in (("lanes", 1), ("spread", 0)):
            if getattr(self, name) is not None:
                value = check_whole(name, getattr(self, name), least, MOST)
                object.__setattr__(self, name, value)


@dataclass(frozen=True)
class OnDevice:
    """Place and form of batches, for ``device`` of a loader.

    Parameters
    ----------
    device : torch.device or str, optional
        As ``device`` of :meth:`Samples.loader`; by default batches stay in ordinary memory.
    dtype : {"float32", "float16", "bfloat16"}, optional
        Dtype of the floating fields after all transforms. NumPy and CuPy have no bfloat16.
    transform : callable, optional
        Called as ``fn(batch)`` with each :class:`Batch` on its device, in the current stream of the
        training loop. It returns a batch, dict or tuple with the same fields. It is called once on
        zeros when the loader is made.
    random : bool, default False
        Whether it is called as ``fn(batch, rng)``, with an :class:`~xloader.Rng`.
    out : Batch, optional
        Tensors of ``batch_size`` rows that each batch overwrites, for CUDA graphs; pass
        ``drop_last=True`` too.

    Raises
    ------
    OptionError
        If a value is outside its range, or ``random`` has no function to serve.

    Examples
    --------
    >>> import numpy as np, xarray as xr, xloader
    >>> ds = xr.Dataset({"t2m": (("time", "x"), np.arange(40.0).reshape(10, 4))})
    >>> samples = xloader.open(ds).window(time=2)
    >>> half = xloader.OnDevice(dtype="float16")
    >>> next(iter(samples.loader(device=half, output="numpy"))).t2m.dtype
    dtype('float16')
    """

    device: Any = None
    dtype: OutputDtype | None = None
    transform: Callable[..., Any] | None = None
    random: bool = False
    # Tensors cannot be compared for a single answer.
    out: Any = field(default=None, compare=False)

    def __post_init__(self) -> None:
        remedy = 'pass the name as text, for example dtype="bfloat16"'
        check_choice("dtype", self.dtype, (None, *get_args(OutputDtype)), remedy)
        check_choice("random", self.random, (True, False))
        object.__setattr__(self, "random", bool(self.random))
        check_callable("transform", self.transform)
        if self.random and self.transform is None:
            raise OptionError(
                "random=True has no function to give random numbers to",
                remedy="pass transform=fn, called as fn(batch, rng), or leave random out",
            )


class PlanKeywords(TypedDict, total=False):
    """Options that mean the same in `Samples.loader` and under a PyTorch ``DataLoader``."""

    on_error: Literal["raise", "skip"]
    plan: PlanRules
    threads: int | None


class LoaderKeywords(PlanKeywords, total=False):
    """All options of `Samples.loader`, each of which may be left out."""

    batch_size: int
    shuffle: bool
    seed: int
    drop_last: bool
    steps: int | None
    memory: int | str | None
    output: OutputKind
    device: Any
    collate_fn: Callable[[list[tuple[Any, ...]]], Any] | None
    processes: int
    prefetch: int
    world: World | None
    on_nan: OnNan


PLAN_OPTIONS: Final = tuple(sorted(PlanKeywords.__optional_keys__))
"""Names of the options in `PlanKeywords`."""


@dataclass(frozen=True)
class LoaderOptions:
    """The checked options of `Samples.loader`.

    :meth:`xloader.Samples.loader` describes each option. Both have the same defaults. Where
    ``memory`` depends on the machine, ``memory_nbytes`` is 0 until `with_memory` says a number.
    """

    batch_size: int = 32
    shuffle: bool = True
    seed: int = 0
    drop_last: bool = False
    steps: int | None = None
    memory: int | str | None = None
    output: OutputKind = "torch"
    device: Any = None
    collate_fn: Callable[[list[tuple[Any, ...]]], Any] | None = None
    threads: int | None = None
    processes: int = 0
    prefetch: int = 2
    on_error: Literal["raise", "skip"] = "raise"
    plan: PlanRules = PlanRules()
    world: World | None = None
    on_nan: OnNan = "warn"
    on_device: OnDevice = field(init=False)
    memory_nbytes: int = field(init=False)

    def __post_init__(self) -> None:
        self._check_numbers()
        check_choice("output", self.output, get_args(OutputKind))
        check_choice("on_error", self.on_error, ("raise", "skip"))
        check_choice("on_nan", self.on_nan, get_args(OnNan))
        for name in ("shuffle", "drop_last"):
            check_choice(name, getattr(self, name), (True, False))
            object.__setattr__(self, name, bool(getattr(self, name)))
        check_callable("collate_fn", self.collate_fn)
        check_kind("plan", self.plan, PlanRules, "xloader.PlanRules(max_amplification=2)")
        given = self.device if isinstance(self.device, OnDevice) else OnDevice(self.device)
        object.__setattr__(self, "on_device", given)
        self._check_device()
        memory = as_share(self.memory)
        object.__setattr__(self, "memory", memory)
        is_share = memory is None or isinstance(memory, MemoryShare)
        object.__setattr__(self, "memory_nbytes", 0 if is_share else parse_nbytes(memory))
        if self.world is not None:
            check_kind("world", self.world, World, "xloader.World(rank, world_size)")
            self._check_lanes()

    def settled(self) -> LoaderOptions:
        """Copy of the options with the rank and the world size given, or found now."""
        return replace(self, world=resolve_world(self.world))

    def with_memory(self, limit: MemoryLimit | None) -> LoaderOptions:
        """Copy of the options with a number of bytes, given the limit that it is a share of."""
        return replace(self, memory=limit.taken_by(self.memory_share)) if limit else self

    @property
    def memory_share(self) -> MemoryShare:
        """The part of the machine's memory, where ``memory`` is no number of bytes."""
        return self.memory if isinstance(self.memory, MemoryShare) else MemoryShare("1/2")

    @property
    def memory_in_words(self) -> str:
        """The memory, before the limit of the machine is known."""
        return show_nbytes(self.memory_nbytes) if self.memory_nbytes else self.memory_share

    @property
    def collates_in_processes(self) -> bool:
        """Whether worker processes call ``collate_fn``: it gets batches as they are gathered."""
        return (
            bool(self.processes) and self.collate_fn is not None and self.on_device.device is None
        )

    def for_process(self) -> LoaderOptions:
        """Copy of the options for a worker process, without what is done after it."""
        return replace(
            self,
            device=OnDevice(dtype=self.on_device.dtype),
            collate_fn=self.collate_fn if self.collates_in_processes else None,
        )

    @property
    def ranks(self) -> World:
        """Rank and world size as in the options; a single process if they are not given."""
        return self.world or World()

    @property
    def global_batch(self) -> int:
        """Number of samples of a step on all ranks together."""
        return self.batch_size * self.ranks.world_size

    @property
    def num_lanes(self) -> int:
        """Number of lanes on all ranks together; by default one for each rank."""
        return self.plan.lanes or self.ranks.world_size

    @property
    def carried_lanes(self) -> int:
        """Number of lanes that must fit in one process's memory.

        All of them if ``lanes`` is given, because a later run may have only one rank; otherwise
        those of a rank.
        """
        return self.plan.lanes or 1

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
            ("steps", 1, MOST),
            ("prefetch", 0, MOST),
            ("threads", 1, MOST_THREADS),
            ("processes", 0, MOST_PROCESSES),
        ):
            value = getattr(self, name)
            # None is allowed where it is the default.
            if value is None and getattr(type(self), name) is None:
                continue
            object.__setattr__(self, name, check_whole(name, value, least, most))

    def _check_device(self) -> None:
        chosen, output = self.on_device, self.output
        for name in ("device", "transform", "out"):
            value = getattr(chosen, name)
            if value is not None and output != "torch":
                shown = repr(value) if name == "device" else f"a {type(value).__name__}"
                remedy = _WITHOUT_DEVICE.get(output, 'pass output="torch"')
                raise OptionError(
                    f"{name} is for tensors of PyTorch",
                    given=f"{name}={shown}, output={output!r}",
                    remedy=f"{remedy}, or leave {name}= out",
                )
        without = {"numpy": "NumPy", "cupy": "CuPy"}
        if chosen.dtype == "bfloat16" and output in without:
            raise OptionError(
                f"{without[output]} has no bfloat16",
                given=f'OnDevice(dtype="bfloat16"), output="{output}"',
                remedy='pass output="torch" or output="jax", or dtype="float16"',
            )

    def _check_lanes(self) -> None:
        check_whole("batch_size * world_size", self.global_batch, 1, MOST)
        ranks = self.ranks.world_size
        if self.num_lanes % ranks:
            raise OptionError(
                "the ranks do not divide the lanes",
                given=f"lanes={self.num_lanes}, world_size={ranks}",
                allowed=f"multiples of {ranks}",
                remedy=f"choose the number of ranks from {divisors_of(self.num_lanes)}; or, for a "
                f"new training run, pass plan=PlanRules(lanes={ranks}) or a multiple of it",
            )
        if self.global_batch % self.num_lanes:
            raise OptionError(
                "the lanes do not divide the global batch",
                given=f"lanes={self.num_lanes}, a global batch of {self.global_batch}",
                allowed=f"one of {[n for n in divisors_of(self.global_batch) if n % ranks == 0]}",
                remedy="pass plan=PlanRules(lanes=...) with one of these, or another batch_size=",
            )


_WITHOUT_DEVICE = {
    "jax": "move batches with jax.device_put(batch.as_dict(), device)",
    "cupy": "choose the GPU with cupy.cuda.Device(0).use() before the loop",
}
"""By output that takes no ``device``, how arrays come to one."""

_INSTEAD = {
    "num_workers": "pass threads=, the number of threads that load, or processes=",
    "workers": "pass threads=, the number of threads that load, or processes=",
    "prefetch_factor": "pass prefetch=, the number of batches to prepare ahead",
    "persistent_workers": "leave it out: threads and processes= serve all epochs of a loader",
    "pin_memory": "leave it out, and pass device=",
    "sampler": "choose samples with .select and .weighted, and the order with shuffle= and seed=",
    "batch_sampler": "choose samples with .select and .weighted, and batches with batch_size=",
    "generator": "pass seed=",
    "steps": "use samples.loader(..., steps=...)",
    "steps_per_epoch": "pass steps= to samples.loader",
    "worker_init_fn": "leave it out: nothing needs to be set in the processes of processes=",
    **dict.fromkeys(
        ("rank", "world_size", "num_replicas"), "pass world=xloader.World(rank, world_size)"
    ),
    **{name: f"pass plan=xloader.PlanRules({name}=...)" for name in PlanRules.__dataclass_fields__},
    **{
        name: f"pass device=xloader.OnDevice({field}=...)"
        for name, field in (
            ("output_dtype", "dtype"),
            ("dtype", "dtype"),
            ("device_transform", "transform"),
            ("out", "out"),
            ("random", "random"),
        )
    },
    **{
        name: f"pass it to xloader.open(..., {name}=...)"
        for name in ("read_timeout", "max_retries")
    },
    "timeout": "pass read_timeout= to xloader.open",
}
"""By a name that users may look for, such as those of PyTorch, the option to use instead."""


MethodT = TypeVar("MethodT", bound=Callable[..., Any])


def lists_options_of(source: Callable[..., Any]) -> Callable[[MethodT], MethodT]:
    """Show options of another callable in the signature of a function that takes them as ``**``."""

    def decorate(method: MethodT) -> MethodT:
        signature = inspect.signature(method)
        before = {p.name: p for p in signature.parameters.values() if p.kind != p.VAR_KEYWORD}
        options = [
            option.replace(kind=option.KEYWORD_ONLY)
            for name, option in inspect.signature(source).parameters.items()
            if name not in before and name != "self"
        ]
        shown = signature.replace(parameters=[*before.values(), *options])
        method.__signature__ = shown  # type: ignore[attr-defined]
        return method

    return decorate


lists_options = lists_options_of(LoaderOptions)
"""Shows a loader's options, with their defaults, in the signature of a method."""


def divisors_of(number: int) -> list[int]:
    """List the divisors of a positive number, ascending."""
    small = [n for n in range(1, math.isqrt(number) + 1) if number % n == 0]
    return sorted({*small, *(number // n for n in small)})


def make_options(**options: Unpack[LoaderKeywords]) -> LoaderOptions:
    """Make the options of a loader from keyword arguments, and refuse unknown names."""
    refuse_unknown(options)
    return LoaderOptions(**options)


def refuse_unknown(options: Mapping[str, Any], known: Sequence[str] = ()) -> None:
    """Refuse names that no option has: of a loader, or of another door with options of its own."""
    known = known or [f.name for f in fields(LoaderOptions) if f.init]
    for name, value in options.items():
        if name not in known:
            close = closest(name, known)
            raise OptionError(
                f"a loader has no option {name!r}",
                given=f"{name}={value!r}",
                allowed=", ".join(known),
                remedy=_INSTEAD.get(name) or (f"did you mean {close!r}?" if close else ""),
            )


def check_epoch(epoch: Any) -> int:
    """Check the number of an epoch, and convert it to ``int``."""
    if not is_whole(epoch) or not 0 <= epoch < 1 << 63:
        raise OptionError(
            "there is no such epoch", given=epoch, allowed="whole numbers from 0 to 2**63 - 1"
        )
    return int(epoch)
