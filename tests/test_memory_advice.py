"""The memory that a note of `explain` names gives what the note says."""

from __future__ import annotations

import re
import warnings
from typing import Any

import numpy as np
import pytest
import xarray as xr

import xloader
from xloader import Samples
from xloader.errors import PlanWarning
from xloader.loader.ranks import rank_plan
from xloader.planning.explain import Explanation


def samples_of(chunk: int, num_steps: int = 4000, *, window: int = 3, lead: int = 0) -> Samples:
    values = np.zeros((num_steps, 100), np.float32)
    opened = xloader.open(xr.Dataset({"t": (("time", "x"), values)}).chunk(time=chunk))
    if not lead:
        return opened.window(time=window, stride=1)
    windows = opened.window(time=lead + 1, stride=1)
    return windows.inputs("t", time=0).targets("t", time=lead)


def explain(samples: Samples, memory: str, **options: Any) -> Explanation:
    return samples.explain(batch_size=16, memory=memory, **options)


def note_of(told: Explanation) -> str:
    return next((note for note in told.notes if "samples.advise(...)" in note), "")


def memory_in(note: str) -> str:
    return re.findall('memory="([^"]*)" would', note)[0]


def test_batches_that_mix_poorly() -> None:
    samples = samples_of(10)
    told = explain(samples, "100kB")
    note = note_of(told)
    assert note.startswith(
        f'batches mix {told.mixing:.1f} of {told.full_mixing:.1f} places with memory="100kB": '
    )
    enough = explain(samples, memory_in(note))
    assert f"would mix {enough.mixing:.1f} and read each chunk " in note
    assert enough.mixing >= enough.full_mixing / 2
    assert enough.read_amplification <= 1.05
    assert note_of(enough) == ""


def test_chunks_that_are_read_several_times() -> None:
    samples = samples_of(10, lead=200)
    told = explain(samples, "120kB")
    assert told.read_amplification > 1.2
    note = note_of(told)
    reads = f"reads every chunk {told.read_amplification:.1f} times"
    assert note.startswith(
        f'a window of 201 at stride 1 on chunks of 10 along time with memory="120kB" {reads}'
    )
    enough = explain(samples, memory_in(note))
    assert enough.read_amplification <= 1.05
    assert note_of(enough) == ""


def test_all_chunks_are_held_where_another_plan_does_not_do() -> None:
    values = np.zeros((60, 60, 60), np.float32)
    ds = xr.Dataset({"t": (("time", "y", "x"), values)}).chunk(time=6, y=20, x=20)
    samples = xloader.open(ds).window(time=3, y=12, x=12, stride=4)
    told = explain(samples, "240KiB")
    note = note_of(told)
    assert "would hold all chunks, and mix as a full shuffle does" in note
    enough = explain(samples, memory_in(note))
    assert enough.read_amplification == 1.0
    assert "later epochs mix as a full shuffle does" in str(enough)
    smaller = explain(samples, f"{int(memory_in(note).removesuffix('KiB')) - 2}KiB")
    assert smaller.spread < enough.spread


def test_each_worker_mixes_its_own_part_only() -> None:
    pytest.importorskip("torch")
    from xloader.torch import data_loader

    values = np.zeros((60, 60, 60), np.float32)
    ds = xr.Dataset({"t": (("time", "y", "x"), values)}).chunk(time=6, y=20, x=20)
    samples = xloader.open(ds).window(time=3, y=12, x=12, stride=4)
    loader = data_loader(samples, 16, num_workers=2, memory="700KiB")
    note = note_of(loader.explain())
    assert "would hold all chunks" in note
    assert "full shuffle" not in note


def test_no_more_than_one_other_plan_is_made(monkeypatch: pytest.MonkeyPatch) -> None:
    made = []

    def counted(*args: Any, **options: Any) -> Any:
        made.append(args)
        return make_plan(*args, **options)

    make_plan = rank_plan.make_plan
    monkeypatch.setattr(rank_plan, "make_plan", counted)
    with samples_of(10).loader(batch_size=16, memory="100kB", output="numpy") as loader:
        note = note_of(loader.explain())
        assert loader.explain().notes
        assert len(made) == 2
        with pytest.warns(PlanWarning, match=f'pass memory="{memory_in(note)}"'):
            next(iter(loader))
        assert len(made) == 2
    made.clear()
    assert note_of(explain(samples_of(10), "1MiB")) == ""
    assert len(made) == 1


def test_a_spread_of_the_user_is_not_blamed_on_memory() -> None:
    assert note_of(explain(samples_of(10), "100kB", plan=xloader.PlanRules(spread=0))) == ""
    with warnings.catch_warnings(action="error"):
        assert note_of(explain(samples_of(10), "100kB", shuffle=False)) == ""
