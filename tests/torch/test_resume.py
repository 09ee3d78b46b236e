"""Resuming PyTorch's doors from any step, with any workers, continues the same batches."""

from __future__ import annotations

import itertools
import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from torch.utils.data import DataLoader
from zarr.storage import LocalStore

import xloader
from tests.cases import Case, cases
from tests.torch.waves import MEMORY, contents, samples_of, write_waves
from xloader import Samples
from xloader.errors import EpochWarning, MemoryBudgetError, OptionError, PlanWarning, StateError
from xloader.loader.ranks.state import sign
from xloader.testing import CountingStore
from xloader.torch import ChunkSampler, IterableDataset, MapDataset, collate, data_loader
from xloader.torch.worker_setup import Process

pytestmark = [
    pytest.mark.filterwarnings("ignore::xloader.errors.PlanWarning"),
    pytest.mark.filterwarnings("ignore::xloader.errors.EpochWarning"),
    pytest.mark.filterwarnings("ignore:This DataLoader will create"),
]

ITERATORS = itertools.count()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_waves(tmp_path_factory.mktemp("stores") / "waves.zarr", 470)


@pytest.fixture
def store(folder: Path, tmp_path: Path) -> CountingStore:
    return CountingStore(LocalStore(folder, read_only=True), log=tmp_path / "reads")


def through_json(state: Any) -> Any:
    text = json.dumps(state)
    assert len(text) < 2048
    found = json.loads(text)
    assert found == state
    return found


def least(make: Any, options: dict[str, Any]) -> dict[str, Any]:
    """Return the options with the least sufficient memory.

    An example whose workers would have padding only is skipped.
    """
    try:
        make(**options, memory=1)
    except MemoryBudgetError as error:
        return {**options, "memory": error.minimum_nbytes}
    except OptionError:
        assume(False)
    raise AssertionError("a plan within a single byte")


def sampler_options(case: Case, rank: int, workers: int) -> dict[str, Any]:
    kept = ("batch_size", "shuffle", "seed", "drop_last")
    options = {name: case.options[name] for name in kept}
    options["plan"] = xloader.PlanRules(lanes=case.options["lanes"])
    options |= {
        "world": xloader.World(rank, case.world_size),
        "num_workers": workers,
        "prefetch_factor": case.options["prefetch"],
    }
    options = least(lambda **own: ChunkSampler(case.samples, **own), options)
    try:
        ChunkSampler(case.samples, **options)
    except OptionError:
        assume(False)
    return options


@pytest.mark.filterwarnings("ignore::xloader.errors.WorkersWarning")
@given(case=cases(), workers=st.integers(1, 4), epoch=st.integers(0, 2), data=st.data())
def test_a_sampler_and_its_dataset_go_on_from_any_step(
    case: Case, workers: int, epoch: int, data: st.DataObject
) -> None:
    rank = data.draw(st.integers(0, case.world_size - 1))
    options = sampler_options(case, rank, workers)

    def read(sampler: ChunkSampler) -> list[Any]:
        # All workers of the plan run in this process.
        dataset = MapDataset(case.samples)
        batches = [contents(dataset.__getitems__(ids).batch) for ids in sampler.batches()]
        dataset.close()
        return batches

    sampler = ChunkSampler(case.samples, **options)
    sampler.set_epoch(epoch)
    whole = read(sampler)
    after = read(sampler)
    step = data.draw(st.integers(0, len(whole)))
    other = ChunkSampler(case.samples, **options)
    other.resume(epoch, step)
    other.set_epoch(epoch)
    expected = other.explain()
    case.store.reset()
    assert read(other) == whole[step:]
    assert case.store.num_reads == expected.num_reads
    assert expected.num_steps == len(whole) - step
    assert other.epoch == epoch + 1
    assert read(other) == after


@given(case=cases(), workers=st.integers(1, 4), epoch=st.integers(0, 2), data=st.data())
def test_the_state_of_an_iterator_brings_the_rest_of_its_ids(
    case: Case, workers: int, epoch: int, data: st.DataObject
) -> None:
    rank = data.draw(st.integers(0, case.world_size - 1))
    options = sampler_options(case, rank, workers)
    sampler = ChunkSampler(case.samples, **options)
    sampler.set_epoch(epoch)
    whole, after = list(sampler), list(sampler)
    num_ids = data.draw(st.integers(0, len(whole)))
    sampler.set_epoch(epoch)
    stopped = iter(sampler)
    assert [next(stopped) for _ in range(num_ids)] == whole[:num_ids]
    state = through_json(stopped.state_dict())
    assert [*stopped] == whole[num_ids:]
    # The seed differs here, because the state brings its own.
    other = ChunkSampler(case.samples, **{**options, "seed": 99})
    begun = iter(other)
    begun.load_state_dict(state)
    assert through_json(begun.state_dict()) == state
    assert [*begun] == whole[num_ids:]
    assert other.epoch == epoch + 1
    assert [*other] == after


def streams(dataset: IterableDataset, workers: int, mp: pytest.MonkeyPatch) -> list[Any]:
    """Return the iterators of all worker processes, each over a copy of the dataset."""
    own, drawn = [], 1000 * next(ITERATORS)
    for number in range(workers):
        process = Process(number, drawn, workers)
        mp.setattr(Process, "here", lambda process=process: process)
        copy = IterableDataset.__new__(IterableDataset)
        copy.__dict__.update(dataset.__getstate__())
        own.append((process, iter(copy)))
    return own


def in_turn(own: list[Any], mp: pytest.MonkeyPatch) -> Iterator[Any]:
    """Yield batches as a DataLoader does: one of each worker in turn, until none is left."""
    while own:
        left = []
        for process, stream in own:
            mp.setattr(Process, "here", lambda process=process: process)
            for batch in stream:
                left.append((process, stream))
                yield batch
                break
        own = left


@pytest.mark.filterwarnings("ignore::xloader.errors.EpochWarning")
@given(case=cases(), workers=st.integers(1, 4), epoch=st.integers(0, 2), data=st.data())
def test_streams_go_on_from_any_step(
    case: Case, workers: int, epoch: int, data: st.DataObject
) -> None:
    rank = data.draw(st.integers(0, case.world_size - 1))
    options = sampler_options(case, rank, workers)
    del options["num_workers"]

    def made() -> IterableDataset:
        return IterableDataset(case.samples, **options)

    with pytest.MonkeyPatch.context() as mp:
        dataset = made()
        dataset.set_epoch(epoch)
        whole = [contents(batch) for batch in in_turn(streams(dataset, workers, mp), mp)]
        step = data.draw(st.integers(0, len(whole)))
        other = made()
        other.resume(epoch, step)
        other.set_epoch(epoch)
        expected = other.explain(num_workers=workers)
        own = streams(other, workers, mp)
        case.store.reset()
        assert [contents(batch) for batch in in_turn(own, mp)] == whole[step:]
        assert case.store.num_reads == expected.num_reads
        assert expected.num_steps == len(whole) - step
        # The next iteration begins the same epoch from its start, in new processes too.
        assert [contents(batch) for batch in in_turn(streams(other, workers, mp), mp)] == whole


@given(case=cases(), epoch=st.integers(0, 2), is_single=st.booleans(), data=st.data())
def test_the_state_of_a_stream_brings_the_rest_of_its_items(
    case: Case, epoch: int, is_single: bool, data: st.DataObject
) -> None:
    rank = data.draw(st.integers(0, case.world_size - 1))
    options = sampler_options(case, rank, 1)
    del options["num_workers"]
    if is_single:
        options |= {"batch_size": None, "plan": xloader.PlanRules()}
        options = least(
            lambda **own: IterableDataset(case.samples, **own), _without_memory(options)
        )

    def taken(items: Iterator[Any]) -> list[Any]:
        if is_single:
            return [[array.tobytes() for array in item] for item in items]
        return [contents(batch) for batch in items]

    dataset = IterableDataset(case.samples, **options)
    dataset.set_epoch(epoch)
    whole = taken(iter(dataset))
    num_items = data.draw(st.integers(0, len(whole)))
    stopped = iter(IterableDataset(case.samples, **options))
    dataset = IterableDataset(case.samples, **options)
    dataset.set_epoch(epoch)
    stopped = iter(dataset)
    head = [next(stopped) for _ in range(num_items)]
    assert taken(iter(head)) == whole[:num_items]
    state = through_json(stopped.state_dict())
    begun = iter(IterableDataset(case.samples, **options))
    begun.load_state_dict(state)
    assert through_json(begun.state_dict()) == state
    assert taken(begun) == whole[num_items:]


def _without_memory(options: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in options.items() if name != "memory"}


def test_what_workers_keep_of_a_remainder_is_told(store: CountingStore) -> None:
    loader = data_loader(samples_of(store), batch_size=16, num_workers=2, memory="8MiB")
    for step in (5, 20, 7, 0, 8):
        loader.sampler.resume(3, step)
        expected = loader.explain()
        store.reset()
        assert len(list(loader)) == 30 - step
        assert store.num_reads == expected.num_reads


def test_a_stock_stream_goes_on(store: CountingStore) -> None:
    samples = samples_of(store)

    def made() -> tuple[IterableDataset, DataLoader[Any]]:
        dataset = IterableDataset(samples, batch_size=16, memory=MEMORY)
        return dataset, DataLoader(
            dataset,
            batch_size=None,
            num_workers=2,
            collate_fn=collate,
            multiprocessing_context="fork",
            persistent_workers=True,
        )

    dataset, loader = made()
    dataset.set_epoch(2)
    whole = [contents(batch) for batch in loader]
    dataset.set_epoch(3)
    after = [contents(batch) for batch in loader]
    dataset, loader = made()
    dataset.resume(2, 9)
    expected = dataset.explain(num_workers=2)
    store.reset()
    assert [contents(batch) for batch in loader] == whole[9:]
    assert store.num_reads == expected.num_reads
    assert dataset.explain(num_workers=2).num_steps == 30
    dataset.set_epoch(3)
    assert [contents(batch) for batch in loader] == after


def test_a_restart_reads_only_what_was_in_memory_then(store: CountingStore) -> None:
    samples = samples_of(store)
    sampler = ChunkSampler(samples, batch_size=16, num_workers=2, memory=MEMORY)
    whole = sampler.explain().num_reads
    for step in range(0, 31, 5):
        sampler.resume(0, step)
        # The rest of the reads, plus two variables' chunks that the two workers have room for.
        most = whole * (1 - step / 30) + 2 * 200 * 1024 / (16 * 60 * 4)
        assert sampler.explain().num_reads <= most
    assert sampler.explain().num_reads == sampler.explain().num_samples == 0


def test_places_that_are_none(folder: Path) -> None:
    samples = samples_of(folder)
    sampler = ChunkSampler(samples, batch_size=16, memory=MEMORY)
    dataset = IterableDataset(samples, batch_size=16, memory=MEMORY)
    for door in (sampler, sampler.batches(), dataset):
        for place in ((-1, 0), (0, -1), (0, 31), (0, 1.5), (True, 0), ("0", 0)):
            with pytest.raises(OptionError, match=r"no such epoch|does not have this step"):
                door.resume(*place)
        door.resume(np.int64(1), np.int64(30))
    single = IterableDataset(samples, batch_size=None, memory=MEMORY)
    with pytest.raises(OptionError, match="one by one"):
        single.resume(0, 1)


def test_choosing_another_epoch_forgets_the_step(folder: Path) -> None:
    samples = samples_of(folder)
    sampler = ChunkSampler(samples, batch_size=16, memory=MEMORY)
    dataset = IterableDataset(samples, batch_size=16, memory=MEMORY)
    for door in (sampler, dataset):
        door.resume(2, 9)
        door.set_epoch(2)
        assert door.explain().num_steps == 21
        door.set_epoch(1)
        door.set_epoch(2)
        assert door.explain().num_steps == 30


def test_doors_themselves_have_no_state(folder: Path) -> None:
    samples = samples_of(folder)
    sampler = ChunkSampler(samples, batch_size=16, memory=MEMORY)
    dataset = IterableDataset(samples, batch_size=16, memory=MEMORY)
    for door in (sampler, dataset):
        for name in ("state_dict", "load_state_dict"):
            assert not hasattr(door, name)
            with pytest.raises(AttributeError, match=r"call \w+\.resume\(epoch, step\)"):
                getattr(door, name)
        with pytest.raises(AttributeError, match="no attribute 'color'"):
            _ = door.color
        assert hasattr(iter(door), "state_dict")
    assert hasattr(iter(sampler.batches()), "load_state_dict")


def damaged(state: dict[str, Any]) -> list[Any]:
    return [
        None,
        "state",
        {},
        {"yielded": 3},
        {**state, "version": 2},
        {**state, "more": 1},
        {name: value for name, value in state.items() if name != "row"},
        {**state, "step": 1},
        *(
            sign({**state, **wrong})
            for wrong in (
                {"row": -1},
                {"row": 16},
                {"row": True},
                {"step": 29, "row": 6},
                {"step": 30, "row": 1},
                {"step": 31},
                {"plan": {}},
            )
        ),
    ]


def test_damaged_states_are_refused_and_change_nothing(folder: Path) -> None:
    samples = samples_of(folder)
    sampler = ChunkSampler(samples, batch_size=16, memory=MEMORY)
    dataset = IterableDataset(samples, batch_size=16, memory=MEMORY)
    for door in (sampler, sampler.batches(), dataset):
        begun = iter(door)
        state = through_json(begun.state_dict())
        for other in damaged(state):
            with pytest.raises(StateError):
                begun.load_state_dict(other)
        assert through_json(begun.state_dict()) == state
        within = sign({**state, "step": 29, "row": 5})
        if door is not dataset:
            begun.load_state_dict(within)
            continue
        with pytest.raises(StateError, match="pass batch_size=None"):
            begun.load_state_dict(within)


def test_states_of_others_are_refused(folder: Path) -> None:
    samples = samples_of(folder)

    def sampler(own: Samples = samples, **options: Any) -> ChunkSampler:
        return ChunkSampler(own, **{"batch_size": 16, "memory": MEMORY, **options})

    state = iter(sampler()).state_dict()
    for other, what in (
        (sampler(samples.select(range(400))), "other samples: their subset"),
        (sampler(batch_size=8), "another global batch"),
        (sampler(num_workers=2, memory="400KiB"), "another num_workers"),
        (sampler(shuffle=False), "another shuffle"),
        (sampler(memory="150KiB"), "needs more memory"),
    ):
        with pytest.raises((StateError, MemoryBudgetError), match=what):
            iter(other).load_state_dict(state)

    def dataset(**options: Any) -> IterableDataset:
        return IterableDataset(samples, **{"batch_size": 16, "memory": MEMORY, **options})

    state = iter(dataset()).state_dict()
    for options, what in (({"seed": 7}, "pass seed=0"), ({"memory": "1MiB"}, "another plan")):
        with pytest.raises(StateError, match=what):
            iter(dataset(**options)).load_state_dict(state)


def test_a_remainder_is_no_repetition(folder: Path) -> None:
    dataset = IterableDataset(samples_of(folder), batch_size=16, memory=MEMORY)
    assert len(list(dataset)) == 30
    dataset.resume(0, 20)
    assert len(list(dataset)) == 10
    with pytest.warns(EpochWarning, match="set_epoch"):
        assert len(list(dataset)) == 30


@pytest.mark.filterwarnings("ignore:This process")
@pytest.mark.filterwarnings("ignore:epoch 0 begins anew")
def test_other_processes_than_those_that_went_on_begin_anew(folder: Path) -> None:
    dataset = IterableDataset(samples_of(folder), batch_size=16, memory="400KiB")
    whole = len(dataset)
    dataset.resume(0, 20)
    assert len(list(dataset)) == whole - 20
    loader: DataLoader[Any] = DataLoader(dataset, batch_size=None, num_workers=2)
    assert len(list(loader)) == whole
    dataset.resume(0, 21)
    assert len(list(loader)) == whole - 21
    dataset.resume(0, 0)
    for _ in range(2):
        assert len(list(dataset)) == whole
    dataset.resume(0, 20)
    dataset.set_epoch(1)
    assert len(list(loader)) == whole


def _wait(worker: int) -> None:
    # The first worker is far ahead, and its pass may end before the others begin.
    time.sleep(worker)


@pytest.mark.filterwarnings("ignore:This process")
@pytest.mark.filterwarnings("ignore:epoch 0 begins anew")
def test_a_look_at_one_batch_leaves_no_worker_behind(folder: Path) -> None:
    dataset = IterableDataset(samples_of(folder), batch_size=16, memory="400KiB")
    loader: DataLoader[Any] = DataLoader(
        dataset, batch_size=None, num_workers=2, collate_fn=collate, worker_init_fn=_wait
    )
    dataset.resume(0, 20)
    next(iter(loader))
    ids = [int(i) for batch in loader for i in batch.ids]
    assert sorted(ids) == list(range(470))


def test_a_state_may_change_doors(folder: Path) -> None:
    samples = samples_of(folder)
    with samples.loader(batch_size=16, memory=MEMORY, output="numpy") as loader:
        whole = [batch.ids.tolist() for batch in loader]
        loader.set_epoch(0)
        for _ in zip(range(7), loader, strict=False):
            state = through_json(loader.state_dict())
    batches = iter(ChunkSampler(samples, batch_size=16, memory=MEMORY).batches())
    batches.load_state_dict(state)
    assert next(batches) == whole[7]
    state = through_json(batches.state_dict())
    with samples.loader(batch_size=16, memory=MEMORY, output="numpy") as loader:
        loader.load_state_dict(state)
        assert [batch.ids.tolist() for batch in loader] == whole[8:]
        with pytest.raises(StateError, match="lies within a batch"):
            loader.load_state_dict(sign({**state, "row": 3, "seed": 5}))
        assert loader.state_dict()["seed"] == 0


def test_warnings_point_at_the_line_of_the_user(folder: Path) -> None:
    samples = samples_of(folder)
    poor = {"batch_size": 16, "memory": "76800", "plan": xloader.PlanRules(spread=0)}
    doors = [
        samples.loader(**poor),
        IterableDataset(samples, **poor),
        data_loader(samples, **poor),
        DataLoader(IterableDataset(samples, **poor), batch_size=None),
    ]
    for door in doors:
        with pytest.warns(PlanWarning) as told:
            next(iter(door))
        assert {warning.filename for warning in told} == {__file__}


def test_workers_keep_nothing_for_others_to_whom_their_steps_come(folder: Path) -> None:
    def sampler() -> ChunkSampler:
        return ChunkSampler(
            samples_of(folder),
            batch_size=16,
            memory="64MiB",
            num_workers=2,
            persistent_workers=True,
        )

    used, fresh = sampler(), sampler()
    num_reads = used.explain().num_reads
    assert len(list(used)) == 470
    assert used.explain().num_reads < num_reads
    for own in (used, fresh):
        own.resume(1, 29)
        assert len(list(own)) == 6
        own.resume(1, 1)
    # The chunks of the last pass are in the process that needs them, those of the pass before it in
    # another one.
    assert 0 < used.explain().num_reads == fresh.explain().num_reads


@pytest.mark.filterwarnings("error::xloader.errors.WorkersWarning")
@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_trainer_that_skips_steps_goes_on_by_the_plan(
    num_workers: int, store: CountingStore
) -> None:
    def epochs(loader: Any, *numbers: int) -> Iterator[list[Any]]:
        for number in numbers:
            loader.set_epoch(number)
            yield [contents(batch) for batch in loader]

    def make() -> Any:
        samples = samples_of(store)
        return data_loader(samples, 10, num_workers=num_workers, memory=MEMORY, seed=1)

    whole = list(epochs(make(), 0, 1, 0))
    assert whole[0] == whole[2] != whole[1]
    loader = make()
    # As accelerate's skip_first_batches does for transformers.Trainer.
    rest = DataLoader(
        loader.dataset,
        batch_sampler=SkippedSteps(loader.batch_sampler, 14),
        collate_fn=loader.collate_fn,
        num_workers=num_workers,
        multiprocessing_context=loader.multiprocessing_context,
    )
    loader.batch_sampler.set_epoch(1)
    loader.sampler.resume(1, 14)
    expected = loader.explain().num_reads
    loader.batch_sampler.set_epoch(0)
    loader.batch_sampler.set_epoch(1)
    store.reset()
    assert [contents(batch) for batch in rest] == whole[1][14:]
    assert store.num_reads == expected


class SkippedSteps:
    """A batch sampler that takes the first batches of another one and drops them."""

    def __init__(self, sampler: Any, num_skipped: int) -> None:
        self.sampler, self.num_skipped = sampler, num_skipped

    def __iter__(self) -> Iterator[list[int]]:
        return itertools.islice(self.sampler, self.num_skipped, None)
