"""The progress bar of a loader."""

from __future__ import annotations

import gc
import importlib.util
import io
import threading
import weakref
from typing import Any

import numpy as np
import pytest
import xarray as xr

import xloader
from xloader.errors import MissingDependencyError
from xloader.loader.progress import bar_fields

DATASET = xr.Dataset({"a": (("time", "x"), np.ones((40, 1000), np.float32))})


def loader_of(**options: Any) -> Any:
    samples = xloader.open(DATASET.chunk(time=4)).window(time=1)
    return samples.loader(batch_size=4, output="numpy", **options)


def test_a_bar_goes_over_an_epoch() -> None:
    text = io.StringIO()
    with loader_of() as loader:
        bar = loader.progress(file=text, mininterval=0, ascii=True)
        ids = []
        for batch in bar:
            bar.set_postfix(loss=0.5)
            ids += batch.ids.tolist()
        report = loader.report()
    assert sorted(ids) == list(range(40))
    assert report.read_nbytes == DATASET.nbytes
    last = text.getvalue().split("\r")[-1]
    assert last.startswith("epoch 0: 100%|##########| 10/10 [")
    assert "B/s decoded, " in last
    assert "% waited, loss=0.5]" in last


def test_a_bar_does_not_begin_with_the_figures_of_another_epoch() -> None:
    text = io.StringIO()
    with loader_of() as loader:
        for _ in loader:
            pass
        for _ in loader.progress(file=text, ascii=True):
            pass
    assert "0.0 MB/s decoded, 0% waited" in text.getvalue().split("\r")[1]
    assert text.getvalue().split("\r")[1].startswith("epoch 1:   0%")
    with loader_of() as loader:
        loader.set_epoch(3)
        assert loader.progress(file=text).desc == "epoch 3"


def test_a_bar_keeps_no_counters_of_the_epoch_before() -> None:
    with loader_of() as loader:
        for _ in loader:
            pass
        before = weakref.ref(loader._progress)
        bar = loader.progress(file=io.StringIO())
        next(iter(bar))
        gc.collect()
        assert before() is None


def test_a_resumed_epoch_begins_in_the_middle() -> None:
    with loader_of() as loader:
        for number, _ in enumerate(loader, 1):
            state = loader.state_dict()
            if number == 7:
                break
        # After a break, the epoch starts anew.
        assert loader.progress(file=io.StringIO()).n == 0
    with loader_of() as other:
        other.load_state_dict(state)
        bar = other.progress(file=io.StringIO())
        assert (bar.n, bar.total) == (7, 10)
        assert len(list(bar)) == 3
        assert bar.n == 10


def test_rank_0_shows_it_for_all() -> None:
    for rank in range(2):
        with loader_of(world=xloader.World(rank, 2)) as loader:
            assert loader.progress(file=io.StringIO()).disable == (rank > 0)
            bar = loader.progress(file=io.StringIO(), disable=False, desc="mine")
            assert (bar.disable, bar.desc) == (False, "mine")


def test_the_share_of_waiting_is_of_the_time_so_far() -> None:
    assert bar_fields(5 * 10**9, 10.0, 2.5) == {"decoded": "0.50 GB/s", "waited": "25%"}
    assert bar_fields() == {"decoded": "0.0 MB/s", "waited": "0%"}
    # The first batch was waited for, and is not there yet.
    assert bar_fields(0, 0.0, 2.0)["waited"] == "100%"


def test_a_loop_that_breaks_ends_the_run() -> None:
    with loader_of() as loader:
        for _ in loader.progress(file=io.StringIO()):
            run = loader._run
            assert run is not None
            break
        gc.collect()
        assert run.is_closed
        assert len(list(loader.progress(disable=True))) == 10
    assert not [t for t in threading.enumerate() if t.name.startswith("xloader")]


def test_several_sets_have_one_bar() -> None:
    samples = xloader.open(DATASET.chunk(time=4)).window(time=1)
    mixed = xloader.interleave({"a": (samples, 1), "b": (samples, 1)})
    text = io.StringIO()
    with mixed.loader(batch_size=4, output="numpy") as loader:
        for _ in loader.progress(file=text, mininterval=0):
            pass
        assert loader.report().read_nbytes > 0
    assert f"{len(loader)}/{len(loader)}" in text.getvalue()


def test_without_tqdm_the_error_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    find = importlib.util.find_spec
    monkeypatch.setattr(
        "xloader.core.messages.find_spec", lambda name: None if name == "tqdm" else find(name)
    )
    with pytest.raises(MissingDependencyError, match=r"progress bars need tqdm.*viz"):
        loader_of().progress()
