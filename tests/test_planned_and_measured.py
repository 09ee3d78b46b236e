"""What `explain` predicts equals what `report` measures, on six kinds of stores and orders."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xarray as xr

import xloader
from xloader import Samples
from xloader.loader.loader import Loader
from xloader.show.cost_figures import Figures
from xloader.testing import LatencyStore, SourceRecorder, write_store

pytestmark = pytest.mark.filterwarnings("ignore::xloader.errors.PlanWarning")


def make_dataset(**shapes: tuple[int, ...]) -> xr.Dataset:
    """Make variables of float32; a shape has the dimensions time, y and x as far as it reaches."""
    rng = np.random.default_rng(0)
    return xr.Dataset(
        {
            name: (("time", "y", "x")[: len(shape)], rng.random(shape, np.float32))
            for name, shape in shapes.items()
        }
    )


def packed(_: Path) -> Samples:
    dataset = make_dataset(a=(512, 32, 32), b=(512, 32))
    dataset["a"].encoding = {"dtype": "int16", "scale_factor": 1e-4, "add_offset": 0.5}
    # Both have chunks of four steps, so they are read together.
    return xloader.open(write_store(dataset, {"a": (4, 32, 32), "b": (4, 32)})).window(time=2)


def other_chunks(_: Path) -> Samples:
    dataset = make_dataset(a=(512, 32, 32), b=(512, 32, 32), c=(512,)).assign(
        mask=(("y", "x"), np.ones((32, 32), np.float32))
    )
    chunks = {"a": (4, 32, 32), "b": (16, 16, 32), "c": (512,), "mask": (32, 32)}
    opened = xloader.open(write_store(dataset, chunks)).window(time=2, stride=1)
    return opened.inputs("a", "b").field("c", "c").field("mask", "mask")


def leads(_: Path, *, is_distant: bool = False) -> Samples:
    dataset = make_dataset(a=(512, 32, 32), b=(512, 32))
    store = write_store(dataset, {"a": (4, 32, 32), "b": (8, 32)})
    opened = xloader.open(LatencyStore(store, 0.0) if is_distant else store)
    windows = opened.window(time=6, stride=1)
    return windows.inputs("a", time=slice(0, 2)).targets("b", time=5)


def long_lead(_: Path) -> Samples:
    store = write_store(make_dataset(a=(600, 32, 32)), {"a": (4, 32, 32)})
    opened = xloader.open(store).window(time=161, stride=1)
    return opened.inputs("a", time=0).targets("a", time=160)


def from_dask(_: Path) -> Samples:
    dataset = make_dataset(a=(256, 32, 32), b=(256, 32))
    return xloader.open(dataset.chunk(time=4)).window(time=2)


def distant(_: Path) -> Samples:
    store = write_store(make_dataset(a=(512, 32, 32)), {"a": (4, 32, 32)})
    return xloader.open(LatencyStore(store, 0.0)).window(time=1)


@dataclass(frozen=True)
class Kind:
    """One configuration: the samples, the options, and how loose the bound of memory may be."""

    make: Callable[[Path], Samples]
    memory: str
    options: dict[str, Any] = field(default_factory=dict)
    num_ranks: int = 1


KINDS = {
    "packed": Kind(packed, "600KiB"),
    "other chunks": Kind(other_chunks, "1.5MiB"),
    "amplified": Kind(long_lead, "500KiB", {"plan": xloader.PlanRules(max_amplification=4)}),
    "ranks and lanes": Kind(
        partial(leads, is_distant=True), "2MiB", {"plan": xloader.PlanRules(lanes=4)}, num_ranks=2
    ),
    "dask": Kind(from_dask, "768KiB"),
    "distant": Kind(distant, "1MiB"),
}


def assert_sums(figures: Figures) -> None:
    """Check that the figures of the variables sum to those of the epoch."""
    variables = figures.variables.values()
    assert figures.num_reads == sum(own.num_reads for own in variables)
    assert figures.read_nbytes == sum(own.read_nbytes for own in variables)
    assert all(own.num_reads >= own.num_chunks for own in variables)


def wait_until_full(loader: Loader, nbytes: float) -> None:
    """Wait while the threads have work, as they have until as much is in memory as may be.

    A loop that asks for batches sooner than they come keeps the memory from filling up.
    """
    assert loader._progress is not None
    tally = loader._progress.tally
    num_idle = 0
    while tally.peak_nbytes < nbytes and num_idle < 60:
        time.sleep(0.0005)
        tally.refresh()
        num_idle = 0 if tally.workers.num or tally.fetches.num else num_idle + 1


@pytest.mark.parametrize("name", KINDS)
def test_what_is_planned_is_what_is_measured(name: str, tmp_path: Path) -> None:
    kind = KINDS[name]
    plain = kind.make(tmp_path)
    recorder = SourceRecorder(plain.recipe.source)
    samples = Samples(replace(plain.recipe, source=recorder))
    for rank in range(kind.num_ranks):
        recorder.reset()
        options = {"world": xloader.World(rank, kind.num_ranks), **kind.options}
        with samples.loader(
            batch_size=2, memory=kind.memory, output="numpy", threads=2, **options
        ) as loader:
            planned = loader.explain()
            for _ in loader:
                wait_until_full(loader, 0.9 * planned.peak_nbytes)
            measured = loader.report()
        assert_sums(planned)
        assert (planned.read_amplification > 1.1) == (name == "amplified")
        assert (measured.num_reads, measured.read_nbytes) == (
            planned.num_reads,
            planned.read_nbytes,
        )
        assert measured.variables == planned.variables
        counted = Counter(variable for variable, _ in recorder.reads.elements())
        assert counted == {v: own.num_reads for v, own in planned.variables.items()}
        # Threads need not read at the same time, though they may.
        assert 0.85 * planned.peak_nbytes <= measured.peak_nbytes <= planned.peak_nbytes
