"""The picture of a plan: its bars are the schedule's residences, its line the mixing of batches."""

from __future__ import annotations

import gc
import json
import pickle
from typing import Any

import numpy as np
import pytest
import xarray as xr

import xloader
from tests.pictures import assert_legible, seen_ticks
from xloader import Samples
from xloader.errors import OptionError
from xloader.loader.loader import Loader
from xloader.loader.ranks.cursor import Position
from xloader.planning.epoch import Epoch, RemainingOrder
from xloader.show.drawings import ResidenceTimes
from xloader.testing import write_store

colors = pytest.importorskip("matplotlib.colors")
residences = pytest.importorskip("xloader.show.epoch_plots")
COLOURS = residences.COLOURS

pytestmark = pytest.mark.filterwarnings("ignore::xloader.errors.PlanWarning")


def samples_of(num_chunks: int = 24, window: int = 3, stride: int = 1) -> Samples:
    size = 8 * num_chunks
    ds = xr.Dataset({"t": (("time", "x"), np.zeros((size, 4000), "f4"))})
    store = write_store(ds, {"t": (8, 4000)})
    return xloader.open(store).window(time=window, stride=stride)


def made(loader: Loader) -> ResidenceTimes:
    times = loader.explain()._times
    assert times is not None
    return times()


def needed_steps(loader: Loader, part: Any) -> list[tuple[int, int, int, int]]:
    """Lane, block, first and last step of each residence, found sample by sample."""
    found = []
    sublanes = part.sublanes
    for number, lane in enumerate(part.lanes(range(sublanes.num))):
        own = lane.schedule.residences[0]
        done = sublanes.num_done_of(number)
        first: dict[int, int] = {}
        last: dict[int, int] = {}
        place = 0
        for entries, _ in lane.order.places():
            for entry in entries.tolist():
                step = place // sublanes.share + done
                place += 1
                for member in own.members[own.offsets[entry] : own.offsets[entry + 1]].tolist():
                    first.setdefault(member, step)
                    last[member] = step
        found += [(number, int(own.block[m]), first[m], last[m]) for m in sorted(first)]
    return sorted(found)


CASES = {
    "shuffled": {"memory": "2MiB"},
    "two lanes": {"memory": "4MiB", "plan": xloader.PlanRules(lanes=2)},
    "in order": {"memory": "2MiB", "shuffle": False},
}


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("first_step", [0, 11])
def test_bars_are_from_the_first_to_the_last_step_that_needs_a_chunk(case, first_step):
    loader = samples_of().loader(batch_size=8, output="numpy", **CASES[case])
    if first_step:
        loader.move_to(Position(0, first_step))
    times = made(loader)
    part = loader._left(loader._cursor.start)
    expected = needed_steps(loader, part)
    bars = sorted(
        zip(times.lane.tolist(), times.block.tolist(), times.load, times.drop, strict=True)
    )
    assert len(bars) == len(expected) == loader.explain().num_reads
    assert times.first_step == first_step
    # To within the samples of a chunk, and a step.
    near = 8 / part.sublanes.share + 0.6
    for bar, (lane, block, first, last) in zip(bars, expected, strict=True):
        assert bar[:2] == (lane, block)
        assert bar[2] == pytest.approx(first, abs=near)
        assert bar[3] == pytest.approx(last + 1, abs=near)
    is_left = any(isinstance(lane.order, RemainingOrder) for lane in part.lanes([0]))
    assert is_left == bool(first_step)


def test_chunks_that_stay_are_not_dropped_and_regions_have_the_mean_of_the_plan():
    options = {"batch_size": 8, "output": "numpy", "drop_last": True}
    loader = samples_of().loader(**options, memory="256MiB")
    times = made(loader)
    assert loader.plan.is_resident
    assert times.drop.tolist() == [times.num_steps] * 24
    loader = samples_of().loader(**options, memory="2MiB")
    times = made(loader)
    assert times.batches.tolist() == list(range(len(loader)))
    assert times.regions.mean() == pytest.approx(loader.explain().mixing)


@pytest.mark.parametrize("num_chunks", [1, 2])
def test_few_chunks_have_ticks_at_whole_numbers(num_chunks):
    explained = samples_of(num_chunks).loader(batch_size=8, output="numpy").explain()
    picture = explained.plot()
    picture.canvas.draw()
    above, below = picture.axes
    assert seen_ticks(above.yaxis) == [str(number) for number in range(num_chunks)]
    for axis in (below.xaxis, below.yaxis):
        ticks = seen_ticks(axis)
        assert ticks
        assert ticks == [f"{int(text)}" for text in ticks]


def test_no_text_touches_an_edge_and_large_numbers_have_commas():
    explained = samples_of(1200).loader(batch_size=8, output="numpy", memory="64MiB").explain()
    picture = explained.plot()
    assert_legible(picture)
    above = picture.axes[0]
    assert "1,200 chunks" in picture.get_suptitle()
    assert "1,000" in seen_ticks(above.yaxis)


def test_bars_have_the_colour_of_their_lane_and_marked_ends():
    loader = samples_of().loader(
        batch_size=8, output="numpy", memory="4MiB", plan=xloader.PlanRules(lanes=2)
    )
    times = made(loader)
    above, below = loader.explain().plot().axes
    (bars,) = above.collections
    drawn = [tuple(colour[:3]) for colour in bars.get_facecolors()]
    assert drawn == [colors.to_rgb(COLOURS[lane]) for lane in times.lane]
    boxes = np.array([path.vertices[:4] for path in bars.get_paths()])
    assert np.allclose(boxes[:, 0, 0], times.load)
    assert np.allclose(boxes[:, 1, 0], times.drop)
    assert np.allclose(boxes[:, :, 1].mean(axis=1), times.block)
    *_, loads, drops = above.lines
    assert np.array_equal(loads.get_xdata(), times.load)
    assert np.array_equal(drops.get_xdata(), times.drop)
    legend = [text.get_text() for text in above.get_legend().get_texts()]
    assert legend == ["lane 0", "lane 1", "load", "drop"]
    assert above.get_ylabel() == "chunk of t"
    assert below.get_xlabel() == "step of the epoch"
    line, mean, full = below.lines
    assert line.get_ydata().tolist() == times.regions.tolist()
    assert mean.get_ydata()[0] == loader.explain().mixing
    assert full.get_ydata()[0] == loader.explain().full_mixing


def test_of_many_bars_those_of_some_chunks_are_drawn(monkeypatch):
    loader = samples_of().loader(batch_size=8, output="numpy", memory="4MiB")
    times = made(loader)
    monkeypatch.setattr(residences, "_MOST_BARS", -(-len(times.block) // 3))
    above = loader.explain().plot().axes[0]
    (bars,) = above.collections
    drawn = [path.vertices[:4, 1].mean() for path in bars.get_paths()]
    assert np.allclose(drawn, [block for block in times.block if block % 3 == 0])
    assert "one of 3 chunks" in [text.get_text() for text in above.get_legend().get_texts()]


def test_workers_have_the_steps_that_are_theirs():
    from xloader.torch import IterableDataset

    dataset = IterableDataset(samples_of(), batch_size=8, memory="4MiB")
    times = dataset.explain(num_workers=2)._times()
    assert times.num_steps == 24
    assert times.num_lanes == 1
    assert float(times.load.min()) < 1.5
    assert float(times.drop.max()) == pytest.approx(24, abs=1)


def test_an_explanation_stays_small_and_says_when_its_plan_is_gone():
    loader = samples_of().loader(batch_size=8, output="numpy", memory="2MiB")
    explained = loader.explain()
    drawn = explained._times()
    # Without the loader, the schedule is made again.
    del loader
    again = explained._times()
    assert np.array_equal(drawn.load, again.load)
    assert len(pickle.dumps(explained)) < 4096
    copy = pickle.loads(pickle.dumps(explained))
    assert copy == explained
    assert str(copy) == str(explained)
    assert "_times" not in copy.to_dict()
    json.dumps(copy.to_dict(), default=str)
    with pytest.raises(OptionError, match="where the loader is"):
        copy.plot()
    with pytest.raises(OptionError, match="not known here"):
        samples_of().explain(order=[3, 1, 2], memory="16MiB").plot()


@pytest.mark.filterwarnings("ignore::xloader.errors.PlanWarning")
@pytest.mark.parametrize("first_step", [0, 11])
def test_a_schedule_that_is_made_again_is_not_searched_for_again(
    monkeypatch: pytest.MonkeyPatch, first_step: int
) -> None:
    loader = samples_of().loader(
        batch_size=8, output="numpy", memory="3MiB", plan=xloader.PlanRules(lanes=2)
    )
    loader.move_to(Position(1, first_step))
    told = loader.explain()
    expected = told._times()
    loader.close()
    del loader
    gc.collect()
    numbers: list[int] = []
    drawn = Epoch.drawn

    def count(self: Epoch, number: int, chosen: Any) -> Any:
        numbers.append(number)
        return drawn(self, number, chosen)

    monkeypatch.setattr(Epoch, "drawn", count)
    times = told._times.if_cheap()
    # The tenth draw of the line of runs was the best of 32, and is made alone.
    assert set(numbers) == {10}
    for name in ("lane", "block", "load", "drop"):
        assert np.array_equal(getattr(times, name), getattr(expected, name))
