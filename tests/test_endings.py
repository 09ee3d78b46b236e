"""An epoch that is left half way leaves nothing that delays the next one."""

from __future__ import annotations

import gc
import os
import signal
from typing import Any

import numpy as np
import pytest
import xarray as xr

import xloader
from benchmarks.measure import resident_nbytes


def make_dataset(num_steps: int) -> xr.Dataset:
    return xr.Dataset({"t": (("time", "x"), np.ones((num_steps, 1000), "f4"))})


def make_loader(fn: Any = None) -> xloader.Loader:
    samples = xloader.open(make_dataset(400).chunk(time=10)).window(time=1)
    samples = samples if fn is None else samples.map(fn)
    return samples.loader(batch_size=16, memory="1MiB", output="numpy")


def test_an_iterator_collected_on_a_thread_of_its_own_run() -> None:
    """A run's own thread may collect its iterator; the next epoch waits for that thread to end.

    The thread cannot wait for itself. The next epoch has all memory.
    """
    iterators: list[Any] = []

    def collect(ds: xr.Dataset) -> xr.Dataset:
        if iterators:
            iterators.pop()
            gc.collect()
        return ds

    # Collect the leftovers of earlier tests first: closing them on that thread may take long.
    gc.collect()
    with make_loader(collect) as loader:
        gc.disable()
        try:
            iterator: Any = iter(loader)
            next(iterator)
            cycle = [iterator]
            cycle.append(cycle)
            run = iterator.run
            iterators.append(cycle)
            del iterator, cycle
            while iterators:
                run.take()
        except xloader.errors.ClosedError:
            pass
        finally:
            gc.enable()
        assert not iterators
        del run
        assert sum(1 for _ in loader) == len(loader)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this platform has no fork")
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_loader_of_plain_memory_begins_anew_in_a_forked_child() -> None:
    """Blocks that were being read at the fork take no room in the child."""
    samples = xloader.open(make_dataset(4000)).window(time=1)
    loader = samples.loader(batch_size=16, memory="13MiB", output="numpy")
    iterator = iter(loader)
    next(iterator)
    pid = os.fork()
    if pid == 0:
        signal.alarm(30)
        os._exit(0 if sum(1 for _ in loader) == len(loader) else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    assert sum(1 for _ in iterator) == len(loader) - 1
    loader.close()


def test_a_closed_loader_holds_no_memory() -> None:
    """Closing a loader frees its chunks at once and keeps the report."""
    ds = xr.Dataset({"t": (("time", "x"), np.zeros((1 << 8, 1 << 16), np.float32))})
    samples = xloader.open(ds.chunk(time=4)).window(time=1)
    loader = samples.loader(batch_size=16, memory="48MiB", output="numpy")
    for _ in loader:
        pass
    held = resident_nbytes()
    loader.close()
    assert held - resident_nbytes() > 0.9 * loader.plan.lane_pool_nbytes > 1 << 24
    assert loader.report().peak_nbytes > 0
