"""Advice on chunks: its predictions are those of a store that really has these chunks."""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import fields, replace
from typing import Any

import numpy as np
import pytest
import xarray as xr
from hypothesis import given, settings
from hypothesis import strategies as st

import xloader
from tests.cases import Case, cases
from xloader import Advice, Samples
from xloader.core.options import make_options
from xloader.errors import (
    EmptySamplesError,
    MemoryBudgetError,
    OptionError,
    UnsupportedDataError,
    XloaderError,
)
from xloader.jobs.advice import chunk_search, chunk_shapes
from xloader.jobs.advice import chunk_search as chunk_trials
from xloader.jobs.advice.chunk_advice import ChunkProposal
from xloader.jobs.advice.chunk_search import ChunkTrials, find_advice
from xloader.jobs.advice.read_speed import ReadSpeed
from xloader.jobs.advice.target_recipe import recipe_in_chunks, taken_variables
from xloader.loader.planned_loader import PlannedLoader
from xloader.loader.ranks.rank_plan import RankPlan
from xloader.planning.explain import Explanation
from xloader.recipe.recipe import Recipe
from xloader.show.cost_figures import Figures
from xloader.testing import CountingStore, write_store

pytestmark = [
    pytest.mark.filterwarnings("ignore::xloader.errors.PlanWarning"),
    pytest.mark.filterwarnings("ignore::xloader.errors.EpochWarning"),
]


def explain_later(loader: xloader.Loader) -> xloader.Explanation:
    """What an epoch costs that is like most, whose order advice looks at."""
    loader.set_epoch(loader._resolver.rank_plan.plan.typical_epoch)
    return loader.explain()


def figures(told: Explanation) -> dict[str, Any]:
    return {f.name: getattr(told, f.name) for f in fields(Figures)}


def written(
    part: xr.Dataset,
    recipe: Recipe,
    chunks: Mapping[str, int],
    shards: Mapping[str, int] | None,
    encoding: Mapping[str, Any] | None = None,
) -> tuple[Recipe, CountingStore]:
    """Write what a recipe takes in other chunks; return the same samples of that store."""
    own = recipe.planned
    names = [v.name for v in taken_variables(own) if not v.is_computed]

    def shape_of(name: str, sizes: Mapping[str, int]) -> tuple[int, ...]:
        return tuple(min(sizes[str(d)], part.sizes[d]) for d in part[name].dims)

    more: dict[str, dict[str, Any]] = {name: dict((encoding or {}).get(name, {})) for name in names}
    for name in names if shards else ():
        clipped = shape_of(name, chunks)
        times = [shards[str(d)] // chunks[str(d)] for d in part[name].dims]
        more[name]["shards"] = tuple(n * t for n, t in zip(clipped, times, strict=True))
    shapes = {name: shape_of(name, chunks) for name in names}
    store = CountingStore(write_store(part[names], shapes, encoding=more))
    source = xloader.open(store).recipe.source
    return replace(own, source=source, variables=tuple(names), selection=()), store


def trials_of(samples: Samples, **options: Any) -> ChunkTrials:
    asked = make_options(**{"output": "numpy", **options})
    return ChunkTrials(samples.recipe, asked.settled(), ReadSpeed())


@pytest.fixture
def tiny_chunks(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Limits for chunks and shards of data of a few hundred bytes."""
    with monkeypatch.context() as patch:
        small_limits(patch.setattr)
        yield


def small_limits(set_to: Callable[[Any, str, int], None]) -> None:
    for name, nbytes in {
        "LEAST_CHUNK_NBYTES": 16,
        "MEDIUM_NBYTES": 64,
        "MOST_CHUNK_NBYTES": 400,
        "_SHARD_NBYTES": 600,
        "_MOST_SHARD_NBYTES": 1200,
    }.items():
        set_to(chunk_shapes, name, nbytes)


# --- predictions are exact ---------------------------------------------------------------------


def check_case(case: Case, chunks: dict[str, int], shards: dict[str, int] | None) -> None:
    """Compare the prediction of each rank with that on a store in these chunks, and with reads."""
    recipe = case.samples.recipe
    part = case.dataset.isel(case.selection)
    target, store = written(part, recipe, chunks, shards)
    for rank in range(case.world_size):
        options = make_options(**case.options_of(rank))
        trials = ChunkTrials(recipe, options, ReadSpeed())
        with PlannedLoader(target, options, np.asarray) as loader:
            told = explain_later(loader)
            proposal = trials._predicted(
                proposal_of(chunks, shards),
                RankPlan(recipe_in_chunks(recipe, chunks, shards), options),
            )
            assert proposal.explanation is not None
            assert figures(proposal.explanation) == figures(told)
            before = store.num_reads
            for _ in loader:
                pass
            assert loader.report().num_reads == told.num_reads
            if shards is None:
                assert store.num_reads - before == told.num_reads


def proposal_of(chunks: dict[str, int], shards: dict[str, int] | None) -> ChunkProposal:
    return ChunkProposal("", chunks, shards, None, 1, 1)


@given(case=cases(), data=st.data())
def test_predictions_are_those_of_a_store_in_these_chunks(case: Case, data: st.DataObject) -> None:
    sizes = case.dataset.isel(case.selection).sizes
    chunks = {str(d): data.draw(st.integers(1, n)) for d, n in sizes.items()}
    shards = None
    if data.draw(st.booleans()):
        shards = {dim: n * data.draw(st.integers(1, 3)) for dim, n in chunks.items()}
    memory = 64 * int(case.dataset.nbytes + 4096)
    check_case(replace(case, options={**case.options, "memory": memory}), chunks, shards)


@settings(max_examples=max(settings().max_examples // 4, 5))
@given(case=cases(), divisor=st.sampled_from([1, 2, 4]))
def test_advice_on_any_samples_is_right_and_no_worse_than_today(case: Case, divisor: int) -> None:
    recipe, part = case.samples.recipe, case.dataset.isel(case.selection)
    with pytest.MonkeyPatch.context() as patch:
        small_limits(patch.setattr)
        memory = max(case.options["memory"] // divisor, 1)
        options = make_options(**case.options_of(0, memory=memory))
        try:
            advice = find_advice(recipe, options)
        except XloaderError:
            return
    json.dumps(advice.to_dict())
    assert str(advice)
    assert advice._repr_html_()
    assert advice.num_plans <= MOST_PLANS
    for proposal in advice.proposals:
        target, _ = written(part, recipe, proposal.chunks, proposal.shards)
        assert proposal.explanation is not None
        with PlannedLoader(target, options, np.asarray) as loader:
            assert figures(explain_later(loader)) == figures(proposal.explanation)
        assert_no_worse(advice.current, proposal)


MOST_PLANS = 1 + chunk_search._FIRST_PLANS + chunk_search._ROUNDS * chunk_search._NEAR_PLANS


def assert_no_worse(now: ChunkProposal, then: ChunkProposal) -> None:
    if now.gb_per_s is None:
        return
    assert then.gb_per_s is not None
    assert then.gb_per_s >= 0.95 * now.gb_per_s
    if now.mixing_share is not None:
        assert then.mixing_share is not None
        assert then.mixing_share >= now.mixing_share - 0.02


def weather(num_steps: int = 240) -> xr.Dataset:
    rng = np.random.default_rng(0)
    sizes = {"time": num_steps, "level": 3, "lat": 16, "lon": 24}
    return xr.Dataset(
        {
            "t2m": (("time", "lat", "lon"), rng.normal(280, 9, (num_steps, 16, 24))),
            "z": (tuple(sizes), rng.normal(5000, 9, tuple(sizes.values()))),
            "land": (("lat", "lon"), rng.random((16, 24)).round()),
        },
        {
            "time": np.datetime64("2001-01-01", "ns")
            + np.arange(num_steps) * np.timedelta64(6, "h"),
            "level": [500, 850, 1000],
            "lat": np.linspace(75, -75, 16),
            "lon": np.arange(24) * 15.0,
        },
    ).astype("float32")


PACKED = {"dtype": "int16", "scale_factor": 0.01, "_FillValue": -32768}
BAD = {"t2m": (240, 4, 6), "z": (240, 1, 4, 6), "land": (16, 24)}


def opened(encoding: Mapping[str, Any] | None = None) -> Samples:
    return xloader.open(CountingStore(write_store(weather(), BAD, encoding=encoding)))


def fields_of_three(samples: Samples) -> Samples:
    samples = samples.window(time=3, stride=1)
    return samples.inputs("t2m", "z", "land", time=slice(0, 2)).targets("t2m", time=2)


SAMPLES: dict[str, Callable[[Samples], Samples]] = {
    "fields": fields_of_three,
    "patches": lambda s: s.window(time=2, lat=5, lon=5, stride={"time": 1, "lat": 4, "lon": 3}),
    "patches that wrap": lambda s: s.window(time=1, lat=4, lon=6, wrap=["lon"]).inputs("t2m"),
    "a part": lambda s: fields_of_three(
        s.sel(time="2001-02", lat=slice(75, 0)).isel(lon=slice(1, 20, 2))
    ),
    "one level": lambda s: s.sel(level=850).window(time=2).inputs("z"),
    "a subset": lambda s: fields_of_three(s).select(np.arange(0, 230, 7)),
    "weights": lambda s: fields_of_three(s).weighted(np.arange(238.0) + 1),
    "a forcing": lambda s: (
        s.forcing("insolation").window(time=2, stride=1).inputs("z", "insolation")
    ),
    "a slab": lambda s: s.window(time=2).inputs("z").slab("lat", 1, 2),
}


@pytest.mark.usefixtures("tiny_chunks")
@pytest.mark.parametrize(
    ("name", "encoding"),
    [*((name, None) for name in SAMPLES), ("fields", {"t2m": PACKED, "z": PACKED})],
    ids=[*SAMPLES, "packed"],
)
def test_each_kind_of_samples_is_predicted_exactly(
    name: str, encoding: Mapping[str, Any] | None
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(chunk_shapes, "LEAST_CHUNK_NBYTES", 2_000)
        patch.setattr(chunk_shapes, "MOST_CHUNK_NBYTES", 40_000)
        patch.setattr(chunk_shapes, "_SHARD_NBYTES", 100_000)
        patch.setattr(chunk_shapes, "_MOST_SHARD_NBYTES", 200_000)
        samples = SAMPLES[name](opened(encoding))
        # One memory is tight, and one holds all, so that a few bytes of indexes show.
        memory = "8MiB" if encoding or name == "a forcing" else "1MiB"
        trials = trials_of(samples, batch_size=4, memory=memory, world=xloader.World())
        proposals = trials.propose(chunk_shapes.candidate_shapes(trials.part)[:4])
    assert len(proposals) > 2
    recipe = samples.recipe
    part = weather().isel(
        {
            dim: kept if isinstance(kept, int) else np.asarray(kept)
            for dim, kept in recipe.planned.selection
        }
    )
    for proposal in proposals:
        target, _ = written(part, recipe, proposal.chunks, proposal.shards, encoding)
        if recipe.slab is not None:
            target = xloader.Samples(target).slab("lat", 1, 2).recipe
        if name == "a forcing":
            made = xloader.Samples(replace(target, windows=None, fields=()))
            made = made.forcing("insolation")
            target = replace(
                made.recipe,
                variables=(*target.variables, "insolation"),
                windows=recipe.windows,
                fields=recipe.fields,
            )
        assert proposal.explanation is not None
        with PlannedLoader(target, trials.options, np.asarray) as loader:
            assert figures(explain_later(loader)) == figures(proposal.explanation)
    assert any(proposal.shards for proposal in proposals)


@pytest.mark.parametrize(
    "options",
    [
        {"shuffle": False},
        {"world": xloader.World(1, 2)},
        {"plan": xloader.PlanRules(lanes=4), "batch_size": 8},
        {"processes": 2},
        {"plan": xloader.PlanRules(spread=3)},
        {"device": xloader.OnDevice(dtype="float16")},
        {"prefetch": 0, "plan": xloader.PlanRules(max_amplification=1.5)},
    ],
    ids=str,
)
def test_the_options_of_the_loader_count(options: dict[str, Any]) -> None:
    samples = fields_of_three(opened())
    told = {"batch_size": 4, "memory": "2MiB", "world": xloader.World(), **options}
    trials = trials_of(samples, **told)
    chunks = {"time": 8, "level": 3, "lat": 16, "lon": 24}
    (proposal,) = trials.propose([chunks])
    target, _ = written(weather(), samples.recipe, chunks, proposal.shards)
    assert proposal.explanation is not None
    with PlannedLoader(target, trials.options, np.asarray) as loader:
        assert figures(explain_later(loader)) == figures(proposal.explanation)


# --- what is proposed --------------------------------------------------------------------------


def long_store(chunks: tuple[int, int]) -> CountingStore:
    ds = xr.Dataset({"t2m": (("time", "x"), np.ones((960, 4000), "float32"))})
    return CountingStore(write_store(ds, {"t2m": chunks}))


def test_one_chunk_over_all_times_does_not_fit_and_proposals_read_once() -> None:
    store = long_store((960, 100))
    samples = xloader.open(store).window(time=3, stride=1)
    advice = samples.advise(batch_size=16, memory="8MiB", threads=2)
    now = advice.current
    assert (dict(now.chunks), now.explanation) == ({"time": 960, "x": 100}, None)
    assert now.minimum_nbytes is not None
    with pytest.raises(MemoryBudgetError) as caught:
        samples.loader(batch_size=16, memory="8MiB", output="numpy")
    assert caught.value.minimum_nbytes == now.minimum_nbytes
    assert now.batch_chunks == now.num_objects == 40
    best = advice.best
    assert best is advice.proposals[0]
    assert best.kind == "best"
    assert best.read_amplification is not None
    assert best.read_amplification <= 1.05
    assert best.mixing_share is not None
    assert best.mixing_share > 0.7
    text = str(advice)
    for word in ("Today a chunk holds time 960 x x 100", "the memory is too small", "assumed"):
        assert word in text
    assert store.num_reads == 0


def test_good_chunks_get_no_proposal() -> None:
    samples = xloader.open(long_store((16, 4000))).window(time=1)
    advice = samples.advise(memory="8MiB", threads=2)
    assert advice.proposals == ()
    assert advice.best is advice.current
    assert "as good in the rest" in str(advice)
    assert advice.current.read_amplification == 1.0


def test_reading_chunks_several_times_is_a_reason() -> None:
    """Each chunk has all times, so patches come back to it after it has been dropped."""
    ds = xr.Dataset({"t2m": (("time", "lat", "lon"), np.ones((512, 60, 60), "float32"))})
    store = CountingStore(write_store(ds, {"t2m": (512, 4, 5)}))
    stride = {"time": 1, "lat": 4, "lon": 4}
    samples = xloader.open(store).window(time=4, lat=16, lon=16, stride=stride)
    options = {"batch_size": 8, "memory": "3MiB", "threads": 2}
    advice = samples.advise(**options)
    now = advice.current
    assert now.explanation is not None
    told = samples.explain(**options)
    assert figures(told) == figures(now.explanation)
    assert told.read_amplification > 1.3
    assert any("samples.advise(...)" in note for note in told.notes)
    best = advice.best.explanation
    assert best is not None
    assert best.read_nbytes < 0.85 * told.read_nbytes
    assert store.num_reads == 0


def test_chunks_that_stay_in_memory_need_no_better_ones() -> None:
    samples = xloader.open(long_store((960, 20))).window(time=1)
    # Each of 200 chunks takes longer to call the codec for than to decode.
    assert samples.advise(memory="8MiB", threads=2).proposals
    advice = samples.advise(memory="64MiB", threads=2)
    assert advice.current.is_resident
    assert advice.proposals == ()
    assert "stays in memory" in str(advice)
    with samples.loader(memory="64MiB", output="numpy") as loader:
        for _ in loader:
            pass
        assert loader.explain().num_reads == 0


def test_proposals_for_many_ids_are_predicted_for_these_ids(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The search compares shapes for all windows; what it says is of the subset."""
    monkeypatch.setattr(chunk_search, "_MANY_IDS", 5)
    ds = xr.Dataset({"t2m": (("time", "x"), np.ones((960, 4000), "float32"))})
    whole = xloader.open(CountingStore(write_store(ds, {"t2m": (960, 100)}))).window(time=1)
    samples = whole.select(np.arange(0, 960, 3))
    options = {"memory": "8MiB", "batch_size": 8, "threads": 2, "output": "numpy"}
    proposals = samples.advise(**options).proposals
    assert proposals
    for proposal in proposals:
        target, _ = written(ds, samples.recipe, proposal.chunks, proposal.shards)
        told = explain_later(xloader.Samples(target).loader(**options))
        assert proposal.explanation is not None
        assert figures(told) == figures(proposal.explanation)
        assert told.num_samples == 320


def test_many_objects_are_a_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chunk_trials, "_MANY_OBJECTS", 10)
    samples = xloader.open(long_store((48, 4000))).window(time=1)
    advice = samples.advise(memory="8MiB", batch_size=8, threads=2)
    assert advice.current.num_objects == 20
    best = advice.best
    assert best.shards is not None
    assert best.num_objects == 1


# --- sizes and speed ---------------------------------------------------------------------------


@pytest.mark.parametrize("shards", [None, (96, 4000)], ids=["chunks", "shards"])
def test_bytes_and_objects_of_a_folder_are_those_of_its_files(
    tmp_path: Any, shards: tuple[int, int] | None
) -> None:
    rng = np.random.default_rng(0)
    values = rng.normal(0, 1, (960, 4000)).astype("float32").round(1)
    encoding = {"t2m": {"shards": shards}} if shards else None
    ds = xr.Dataset({"t2m": (("time", "x"), values)})
    write_store(ds, {"t2m": (48, 1000)}, tmp_path / "s.zarr", encoding=encoding)
    files = [p for p in (tmp_path / "s.zarr" / "t2m" / "c").rglob("*") if p.is_file()]
    samples = xloader.open(tmp_path / "s.zarr").window(time=1)
    now = samples.advise(memory="64MiB").current
    assert now.num_objects == len(files)
    assert now.nbytes == pytest.approx(sum(p.stat().st_size for p in files), rel=0.02)
    assert now.shards == (None if shards is None else {"time": 96, "x": 4000})
    part = xloader.open(tmp_path / "s.zarr").isel(time=slice(0, 480)).window(time=1)
    half = part.advise(memory="64MiB").current
    assert half.num_objects == len(files) // 2
    assert half.nbytes == pytest.approx(now.nbytes / 2, rel=0.02)


def test_sizes_are_those_of_objects_from_all_over(tmp_path: Any) -> None:
    """The first half is constant, so a look at the first shards alone would find tiny ones."""
    values = np.random.default_rng(0).normal(0, 1, (960, 1000)).astype("float32")
    values[:480] = 1.0
    ds = xr.Dataset({"t2m": (("time", "x"), values)})
    encoding = {"t2m": {"shards": (96, 1000)}}
    write_store(ds, {"t2m": (24, 250)}, tmp_path / "s.zarr", encoding=encoding)
    files = [p for p in (tmp_path / "s.zarr" / "t2m" / "c").rglob("*") if p.is_file()]
    now = xloader.open(tmp_path / "s.zarr").window(time=1).advise().current
    assert now.nbytes == pytest.approx(sum(p.stat().st_size for p in files), rel=0.05)


def test_sizes_that_the_store_does_not_tell_are_not_known() -> None:
    advice = xloader.open(weather()[["t2m"]]).window(time=1).advise()
    assert (advice.current.nbytes, advice.current.num_objects) == (None, None)
    assert "not known" in str(advice)


def test_measuring_reads_a_few_chunks_and_says_so() -> None:
    store = long_store((48, 500))
    samples = xloader.open(store).window(time=1)
    advice = samples.advise(measure=True, memory="8MiB", batch_size=4)
    assert store.num_reads == advice.speed.num_reads == 4
    assert advice.to_dict()["speed"] == "measured"
    assert "measured on 4 chunks" in str(advice)
    # Ones compress well, and the store in memory does not tell sizes.
    assert advice.speed.stored_share is not None
    assert advice.speed.stored_share < 0.1
    assert samples.advise(memory="8MiB", batch_size=4).to_dict()["speed"] == "assumed"
    assert store.num_reads == 4


# --- errors ------------------------------------------------------------------------------------


def test_mistakes_are_named() -> None:
    samples = opened()
    with pytest.raises(OptionError, match="windows are not set"):
        samples.advise()
    samples = samples.window(time=1)
    with pytest.raises(OptionError, match="did you mean 'batch_size'"):
        samples.advise(batchsize=4)  # type: ignore[call-arg]
    with pytest.raises(OptionError, match="the ranks do not divide the lanes"):
        samples.advise(batch_size=4, world=xloader.World(0, 3), plan=xloader.PlanRules(lanes=4))
    with pytest.raises(EmptySamplesError):
        samples.select([0]).advise(world=xloader.World(0, 2))
    with pytest.raises(MemoryBudgetError) as caught:
        samples.advise(memory="10KiB")
    # No chunks would do with less.
    assert samples.advise(memory=caught.value.minimum_nbytes) is not None


def test_advice_is_shown_as_a_plain_table() -> None:
    advice = opened().window(time=3, stride=1).inputs("z").advise(memory="600KiB", batch_size=2)
    assert isinstance(advice, Advice)
    html = advice._repr_html_()
    assert html.count("<table>") == 1
    assert "<script" not in html
    for row in ("chunk time", "reads per chunk", "stored objects"):
        assert row in html
        assert row in str(advice)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        json.loads(json.dumps(advice.to_dict()))


def test_a_proposal_of_todays_chunks_says_what_changes():
    ds = xr.Dataset({"t": (("time", "x"), np.zeros((64, 6)))})
    store = write_store(ds, {"t": (4, 6)})
    found = xloader.open(store).window(time=1).advise(batch_size=8, output="numpy")
    today = replace(found.current, gb_per_s=0.5, num_objects=16)
    same = replace(today, kind="best", gb_per_s=1.0, num_objects=2)
    told = Advice(today, (same,), found.speed, 5).in_words()[1]
    assert told == (
        "1. best: With today's chunks, written to Zarr by materialize: 1.00 GB/s in place of 0.50 "
        "GB/s, 2 stored objects in place of 16."
    )


def test_kinds_are_distinct_and_few() -> None:
    samples = opened().window(time=2, lat=5, lon=5, stride={"time": 1, "lat": 4, "lon": 3})
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(chunk_shapes, "LEAST_CHUNK_NBYTES", 2_000)
        patch.setattr(chunk_shapes, "MOST_CHUNK_NBYTES", 40_000)
        advice = samples.advise(batch_size=4, memory="200KiB", threads=2)
    assert 1 <= len(advice.proposals) <= 3
    kinds = [proposal.kind for proposal in advice.proposals]
    assert kinds[0] == "best"
    assert len(set(kinds)) == len(kinds)
    shapes = {tuple(proposal.chunks.items()) for proposal in advice.proposals}
    assert len(shapes) == len(kinds)


def test_a_described_store_refuses_to_read() -> None:
    samples = opened().window(time=1)
    recipe = recipe_in_chunks(samples.recipe, {"time": 4})
    with pytest.raises(UnsupportedDataError, match="only described"):
        recipe.source.fetch([])
    with pytest.raises(UnsupportedDataError, match=r"samples\.materialize"):
        recipe.source.bundle_of("t2m", (0, 0, 0))
    assert recipe.source.coordinates().sizes["time"] == 240
