"""Random windows: so many of each group, anew in each epoch, and each chunk read once."""

from __future__ import annotations

import pickle
from itertools import chain
from typing import Any

import numpy as np
import pytest
import xarray as xr
import zarr
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats
from zarr.storage import MemoryStore

import xloader
from xloader.core.subset import GroupDraws, Subset
from xloader.errors import OptionError
from xloader.samples.samples import Samples
from xloader.testing import CountingStore, write_store

SHAPE, NUM_SCENES, NUM_EACH = (969, 969), 64, 100


def scene_values(scene: Any, y: Any, x: Any) -> Any:
    """The values of all scenes; no two patches of a scene near each other are equal."""
    return ((scene * 31 + y * 7 + x * 13) % 251).astype("u1")


@pytest.fixture(scope="module")
def scenes() -> CountingStore:
    """64 scenes of 1,000 x 1,000, in four chunks each."""
    values = scene_values(*np.ogrid[:NUM_SCENES, :1000, :1000])
    ds = xr.Dataset({"red": (("scene", "y", "x"), values)})
    return CountingStore(write_store(ds, {"red": (1, 500, 500)}))


@pytest.fixture(scope="module")
def patches(scenes: CountingStore) -> Samples:
    samples = xloader.open(scenes).window(scene=1, y=32, x=32, stride=1)
    return samples.random(NUM_EACH, per="scene")


def epoch_ids(samples: Samples, epoch: int = 0, **options: Any) -> list[int]:
    """The ids of an epoch in the order of its batches. Nothing is read but what they hold."""
    with samples.loader(**{"batch_size": 16, "output": "numpy", **options}) as loader:
        loader.set_epoch(epoch)
        return [int(i) for batch in loader for i in batch.ids[~batch.is_padding]]


def test_patches_of_each_scene_are_drawn_anew_and_chunks_are_read_once(
    scenes: CountingStore, patches: Samples
) -> None:
    epochs = []
    assert len(patches) == NUM_SCENES * 969 * 969
    with patches.loader(batch_size=64, memory="32MiB", output="numpy") as loader:
        assert not loader.plan.is_resident
        assert (loader.num_samples, len(loader)) == (6400, 100)
        for _ in range(2):
            expected = loader.explain()
            scenes.reset()
            ids = []
            for batch in loader:
                ids.append(batch.ids)
                scene, y, x = np.unravel_index(batch.ids[::16], (NUM_SCENES, *SHAPE))
                for row, *corner in zip(batch.red[::16], scene, y, x, strict=True):
                    grid = np.ogrid[:1, :32, :32]
                    places = [at + start for at, start in zip(grid, corner, strict=True)]
                    assert np.array_equal(row, scene_values(*places))
            assert set(scenes.reads.values()) == {1}
            assert scenes.num_reads == expected.num_reads == loader.report().num_reads == 256
            epochs.append(np.concatenate(ids))
    for drawn in epochs:
        assert len(np.unique(drawn)) == 6400
        assert (np.bincount(drawn // (969 * 969), minlength=NUM_SCENES) == NUM_EACH).all()
    # Of 6,400 among 60 million windows, few come again.
    assert len(np.intersect1d(*epochs)) < 10


@pytest.fixture(scope="module")
def small() -> Samples:
    ds = xr.Dataset({"a": (("scene", "y"), np.arange(8 * 50.0).reshape(8, 50))})
    store = write_store(ds, {"a": (2, 10)})
    return xloader.open(store).window(scene=1, y=5, stride=1)


def rank_loaders(samples: Samples, size: int, **options: Any) -> list[Any]:
    return [
        samples.loader(
            batch_size=8 // size,
            world=xloader.World(rank, size),
            plan=xloader.PlanRules(lanes=4),
            output="numpy",
            threads=1,
            **options,
        )
        for rank in range(size)
    ]


def global_batches(loaders: list[Any]) -> list[list[int]]:
    steps = zip(*loaders, strict=True)
    return [[int(i) for b in step for i in b.ids[~b.is_padding]] for step in steps]


def test_ranks_draw_the_same_and_go_on_after_a_stop(small: Samples) -> None:
    drawn = small.random(9, per="scene")
    whole = []
    for size in (1, 2, 4):
        loaders = rank_loaders(drawn, size)
        for loader in loaders:
            loader.set_epoch(3)
        whole.append(global_batches(loaders))
    assert whole[0] == whole[1] == whole[2]
    assert sorted(chain.from_iterable(whole[0])) == sorted(epoch_ids(drawn, 3))
    (loader,) = rank_loaders(drawn, 1)
    loader.set_epoch(3)
    batches = iter(loader)
    for _ in range(4):
        next(batches)
    state = loader.state_dict()
    loader.close()
    for size in (1, 2, 4):
        resumed = rank_loaders(drawn, size)
        for other in resumed:
            other.load_state_dict(state)
        assert global_batches(resumed) == whole[0][4:]
        # The epoch after it is that of a run that never stopped.
        assert sorted(chain.from_iterable(global_batches(resumed))) == sorted(epoch_ids(drawn, 4))


def test_seeds_and_epochs_draw_other_windows(small: Samples) -> None:
    drawn = small.random(9, per="scene")
    draws = [frozenset(epoch_ids(drawn, epoch, seed=seed)) for seed in (0, 1) for epoch in (0, 1)]
    assert len(set(draws)) == 4
    assert sorted(epoch_ids(drawn, shuffle=False)) == epoch_ids(drawn, shuffle=False)
    assert set(epoch_ids(drawn, shuffle=False)) == draws[0]


def test_without_groups_all_windows_are_one(small: Samples) -> None:
    drawn = small.random(20)
    assert len(drawn) == 8 * 46
    ids = epoch_ids(drawn)
    assert len(set(ids)) == len(ids) == 20
    # Two scenes with as many windows are hardly ever drawn equally often.
    assert len(set(np.bincount(np.array(ids) // 46, minlength=8))) > 1


@pytest.mark.parametrize("per", [("scene",), ()], ids=["each scene", "all"])
def test_places_are_drawn_alike(per: tuple[str, ...]) -> None:
    """Counts over places fit a uniform draw without replacement: neither too badly nor too well."""
    shape, num_epochs, num_each = (3, 40), 2000, 7
    draws = GroupDraws(num_each, shape, (3 if per else 1, 1), per)
    subset = Subset(120, draws=draws)
    drawn = np.array([subset.drawn(5, epoch) for epoch in range(num_epochs)])
    num_groups, size = (3, 40) if per else (1, 120)
    counts = np.bincount(drawn.reshape(-1), minlength=120).reshape(num_groups, size)
    expected = num_epochs * num_each / size
    # Without replacement, counts vary less.
    share_left = (size - num_each) / (size - 1)
    statistic = ((counts - expected) ** 2 / expected).sum() / share_left
    degrees = num_groups * (size - 1)
    low, high = stats.chi2.ppf([0.001, 0.999], degrees)
    assert low < statistic < high
    is_drawn = np.zeros((num_epochs, 120), np.bool_)
    is_drawn[np.arange(num_epochs)[:, None], drawn] = True
    first = is_drawn[:, :size]
    chance = num_each * (num_each - 1) / (size * (size - 1))
    # Neighbours come together, and windows come in two epochs in a row, as often as by chance.
    assert (first[:, :-1] & first[:, 1:]).mean() == pytest.approx(chance, rel=0.1)
    again = (is_drawn[:-1] & is_drawn[1:]).sum(axis=1).mean()
    assert again == pytest.approx(num_groups * num_each**2 / size, rel=0.1)
    if per:
        # So do windows at one place in two groups.
        both = (is_drawn[:, :40] & is_drawn[:, 40:80]).sum(axis=1).mean()
        assert both == pytest.approx(num_each**2 / size, rel=0.1)


@given(
    shape=st.lists(st.integers(1, 5), min_size=1, max_size=3),
    data=st.data(),
    num_each=st.integers(1, 8),
    kind=st.sampled_from(["all", "ascending", "in any order"]),
)
def test_each_group_gives_so_many(shape: list[int], data: Any, num_each: int, kind: str) -> None:
    """Against a count one by one: of all windows, of some, and of a list with repeats."""
    size = int(np.prod(shape))
    some = st.integers(0, size - 1)
    if kind == "all":
        indices, windows = None, np.arange(size)
    else:
        kept = data.draw(st.lists(some, min_size=1, max_size=20, unique=kind == "ascending"))
        windows = np.array(sorted(kept) if kind == "ascending" else kept)
        indices = windows
    dims = data.draw(st.lists(st.sampled_from(range(len(shape))), unique=True))
    sizes = tuple(n if dim in dims else 1 for dim, n in enumerate(shape))
    draws = GroupDraws(num_each, tuple(shape), sizes, tuple(map(str, sorted(dims))))
    subset = Subset(size, indices, draws=draws)
    drawn = subset.drawn(1, 2)
    assert len(drawn) == subset.num_samples
    assert (np.diff(drawn) > 0).all()
    groups = np.stack(np.unravel_index(windows, shape))[sorted(dims)].T
    every, counts = np.unique(groups, axis=0, return_counts=True)
    for group, count in zip(every, counts, strict=True):
        assert (groups[drawn] == group).all(axis=1).sum() == min(count, num_each)
    again = pickle.loads(pickle.dumps(subset))
    assert again == subset
    assert np.array_equal(again.drawn(1, 2), drawn)


def test_a_group_with_too_few_gives_all_and_says_so(small: Samples) -> None:
    # Scene 2 keeps 3 windows and scene 5 keeps none.
    ids = np.arange(len(small))
    scene, y = ids // 46, ids % 46
    kept = small.select((scene != 5) & ((scene != 2) | (y < 3))).random(9, per="scene")
    note = "2 of 8 groups have fewer than 9 samples, and give all they have"
    assert note in str(kept)
    assert note in str(kept.explain(batch_size=4))
    assert "each epoch draws 57 at random, 9 per scene" in str(kept)
    drawn = kept.positions(epoch_ids(kept))["scene"].values
    assert np.bincount(drawn, minlength=8).tolist() == [9, 9, 3, 9, 9, 0, 9, 9]
    assert "fewer" not in str(small.random(9, per="scene").explain(batch_size=4))


def test_it_comes_before_and_after_other_choices(small: Samples) -> None:
    flags = np.arange(len(small)) % 3 > 0
    before, after = (
        small.random(5, per="scene").select(flags),
        small.select(flags).random(5, "scene"),
    )
    assert before.recipe.fingerprint == after.recipe.fingerprint
    assert epoch_ids(before) == epoch_ids(after)
    split = small.random(5, per="scene").split(scene={"train": 0.75, "valid": 0.25})
    assert [len(epoch_ids(part)) for part in split.values()] == [30, 10]
    assert xloader.overlap(*split.values()) == 0


def test_what_differs_has_another_fingerprint(small: Samples) -> None:
    several = [
        small,
        small.random(5),
        small.random(6),
        small.random(5, per="scene"),
        small.random(5, per=("y", "scene")),
    ]
    assert len({samples.recipe.fingerprint for samples in several}) == 5
    same = small.random(3).random(5, per=["scene", "y"])
    assert same.recipe.fingerprint == several[-1].recipe.fingerprint


def test_640_billion_windows_are_planned_without_a_list_of_them() -> None:
    store = MemoryStore()
    zarr.create_array(
        store,
        name="red",
        shape=(64, 500_000, 20_000),
        chunks=(1, 5000, 5000),
        dtype="u1",
        dimension_names=("scene", "y", "x"),
    )
    samples = xloader.open(store).window(scene=1, y=32, x=32, stride=1)
    # Groups that are no ranges of windows, too.
    for drawn, num_samples in (
        (samples.random(100, per="scene"), 6400),
        (samples.random(1, per="x"), 19_969),
        (samples.random(6400), 6400),
    ):
        expected = drawn.explain(batch_size=64, memory="2GiB")
        assert expected.num_samples == num_samples
        assert expected.read_amplification <= 1.05


@pytest.mark.parametrize("memory", ["400KiB", "700KiB"])
def test_few_windows_of_many_chunks_are_not_read_again(memory: str) -> None:
    """Reads are compared with what this draw needs, not with the many more that any draw may."""
    ds = xr.Dataset({"red": (("y", "x"), np.zeros((2800, 2800), "u1"))})
    samples = xloader.open(write_store(ds, {"red": (100, 100)})).window(y=32, x=32, stride=1)
    for seed in range(3):
        expected = samples.random(500).explain(batch_size=16, memory=memory, seed=seed)
        assert expected.read_amplification < 1.02


def test_coverage_is_what_epochs_have_on_average(small: Samples) -> None:
    kept = small.select(np.arange(len(small)) % 5 < 2)
    for drawn in (small.random(4, per="scene"), kept.random(6, per="scene"), kept.random(30)):
        expected = drawn.coverage()
        counts = np.zeros((8, 50))
        num_epochs = 300
        for epoch in range(num_epochs):
            subset = drawn.recipe.subset
            assert subset is not None
            for scene, y in drawn.recipe.positions_of(subset.drawn(0, epoch)):
                counts[scene, y : y + 5] += 1
        assert expected.grid is not None
        assert expected.grid.values == pytest.approx(counts / num_epochs, abs=0.25)
        assert expected.num_samples == drawn.recipe.subset.num_samples  # type: ignore[union-attr]


def test_statistics_and_overlaps_are_of_all_windows(small: Samples) -> None:
    drawn = small.random(1)
    assert drawn.stats(threads=1).equals(small.stats(threads=1))
    assert xloader.overlap(drawn, small) == 400


def test_sets_with_random_windows_take_turns(small: Samples) -> None:
    sets = {"a": (small.random(4, per="scene"), 1), "b": (small.random(100), 1)}
    with xloader.interleave(sets).loader(batch_size=8, output="numpy") as loader:
        epochs = [
            [(name, int(i)) for b in loader for name, i in zip(b.source, b.ids, strict=True)]
            for _ in range(2)
        ]
    for epoch in epochs:
        assert [sum(name == key for name, _ in epoch) for key in "ab"] == [32, 32]
        assert len(set(epoch)) == 64
    assert set(epochs[0]) != set(epochs[1])
    with pytest.raises(OptionError, match="fewer samples than the epoch takes"):
        xloader.interleave(sets, num_samples=100).explain(batch_size=8)


@pytest.mark.parametrize(
    ("act", "message"),
    [
        (lambda s: s.random(0), "n is too small"),
        (lambda s: s.random(5, per="band"), r"\.window\(\{'band': 1"),
        (lambda s: s.weighted(num_samples=5).random(5), "either by weight or as random windows"),
        (lambda s: s.random(5).weighted(num_samples=5), "either by weight or as random windows"),
    ],
)
def test_wrong_draws_are_named(small: Samples, act: Any, message: str) -> None:
    with pytest.raises(OptionError, match=message):
        act(small)
