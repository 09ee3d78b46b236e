"""The small example of the concept pages, and what the library really plans for it.

96 time steps in 12 chunks of 8. A sample takes one step as input, and the step two later as
target. So 94 samples start at the steps 0 to 93, and those of 11 borders need two chunks.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache, cached_property
from typing import Any

import numpy as np
import xarray as xr

import xloader
from xloader.order.lane_order import LaneOrder
from xloader.planning.epoch import Epoch
from xloader.planning.residence_times import TimesMaker
from xloader.testing import CountingStore, write_store

NUM_CHUNKS, CHUNK, BATCH, SPAN = 12, 8, 4, 3
MEMORY = "2.75MiB"


def small_store(num_chunks: int = NUM_CHUNKS, chunk: int = CHUNK) -> Any:
    """A store of ones in memory, with chunks of ``chunk`` steps and 32 KiB a step."""
    values = np.ones((num_chunks * chunk, 64, 128), np.float32)
    ds = xr.Dataset({"t2m": (("time", "lat", "lon"), values)})
    return write_store(ds, {"t2m": (chunk, 64, 128)})


@cache
def small_samples() -> xloader.Samples:
    """The 94 samples of the example."""
    opened = xloader.open(small_store()).window(time=SPAN, stride=1)
    return opened.inputs("t2m", time=0).targets("t2m", time=2)


@cache
def many_samples() -> xloader.Samples:
    """1,438 such samples in 90 chunks of 16 steps."""
    opened = xloader.open(small_store(90, 16)).window(time=SPAN, stride=1)
    return opened.inputs("t2m", time=0).targets("t2m", time=2)


@cache
def count_decodes(order: tuple[int, ...]) -> int:
    """Chunks that plain code reads: one selection for each sample, with nothing kept."""
    store = CountingStore(small_store())
    steps = xr.open_zarr(store, chunks=None, consolidated=False)["t2m"]
    store.reset()
    for start in order:
        steps.isel(time=[start, start + SPAN - 1]).load()
    return store.num_reads


@dataclass(frozen=True)
class Lane:
    """What one lane of a plan hands out, in order.

    Parameters
    ----------
    ids : numpy.ndarray of int64, shape (n,)
        The samples.
    keys : numpy.ndarray of float64, shape (n,)
        Their keys, in moments.
    stays : list of (int, int, int)
        Chunk, first moment and last moment of each stay in memory.
    """

    ids: np.ndarray
    keys: np.ndarray
    stays: list[tuple[int, int, int]]


@dataclass(frozen=True)
class Planned:
    """An epoch of the example, as the library plans it.

    Parameters
    ----------
    explanation : Explanation
        What `Loader.explain` says.
    epoch : Epoch
        The epoch behind it.
    """

    explanation: xloader.Explanation
    epoch: Epoch

    @cached_property
    def lanes(self) -> list[Lane]:
        """All lanes."""
        found = []
        for lane in self.epoch.lanes(range(self.epoch.sublanes.num)):
            order = lane.order
            assert isinstance(order, LaneOrder)
            (entries, ranks), *more = order.places()
            assert not more
            own = lane.schedule.residences[0]
            stays = zip(
                own.block.tolist(), own.first_moment.tolist(), own.last_moment.tolist(), strict=True
            )
            ids = order.ids(entries, ranks)
            found.append(Lane(ids, order.keys(entries, ranks), sorted(stays)))
        return found

    @property
    def batches(self) -> list[np.ndarray]:
        """Ids of each full global batch, rows lane by lane."""
        lanes = self.lanes
        share = self.epoch.plan.lane_share
        count = min(len(lane.ids) for lane in lanes) // share
        return [
            np.concatenate([lane.ids[k * share : (k + 1) * share] for lane in lanes])
            for k in range(count)
        ]


@cache
def planned(memory: str = MEMORY, lanes: int = 1, max_amplification: float = 1.05) -> Planned:
    """The plan of the example within a memory."""
    loader = small_samples().loader(
        batch_size=BATCH, memory=memory, prefetch=0, seed=0, output="numpy",
        plan=xloader.PlanRules(max_amplification=max_amplification, lanes=lanes),
        world=xloader.World(),
    )  # fmt: skip
    explanation = loader.explain()
    maker = explanation._times
    assert isinstance(maker, TimesMaker)
    assert isinstance(maker.epoch, Epoch)
    return Planned(explanation, maker.epoch)


def chunks_of(sample: int) -> set[int]:
    """The chunks that a sample needs."""
    return {sample // CHUNK, (sample + SPAN - 1) // CHUNK}


def places_of(ids: Any) -> set[int]:
    """The places of samples: four neighbouring chunks each."""
    return {int(number) // CHUNK // 4 for number in ids}


@cache
def full_shuffle() -> tuple[int, ...]:
    """The samples in a fully random order."""
    return tuple(np.random.Generator(np.random.PCG64(0)).permutation(94).tolist())
