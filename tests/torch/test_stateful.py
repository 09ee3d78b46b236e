"""torchdata's StatefulDataLoader over xloader's doors: it saves their states and resumes there."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xarray as xr
from zarr.storage import LocalStore

import xloader
from tests.torch.waves import MEMORY, contents, through_json
from xloader import Samples
from xloader.errors import StateError
from xloader.loader.ranks.state import sign
from xloader.testing import CountingStore, write_store
from xloader.torch import ChunkSampler, IterableDataset, MapDataset, collate

stateful = pytest.importorskip("torchdata.stateful_dataloader")

pytestmark = [
    pytest.mark.filterwarnings("ignore::xloader.errors.PlanWarning"),
    pytest.mark.filterwarnings("ignore:This DataLoader will create"),
    # torchdata causes this warning.
    pytest.mark.filterwarnings("ignore:.set_vital. is deprecated"),
]

EPOCH = 3


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    values = np.random.default_rng(0).normal(size=(250, 6, 10)).astype(np.float32)
    dataset = xr.Dataset({"t": (("time", "y", "x"), values)})
    path = tmp_path_factory.mktemp("stores") / "waves.zarr"
    write_store(dataset, {"t": (8, 6, 10)}, path)
    return path


@pytest.fixture
def store(folder: Path, tmp_path: Path) -> CountingStore:
    return CountingStore(LocalStore(folder, read_only=True), log=tmp_path / "reads")


def samples_of(source: object) -> Samples:
    return xloader.open(source).window(time=1)


def map_loader(samples: Samples, num_workers: int) -> Any:
    sampler = ChunkSampler(samples, batch_size=16, num_workers=num_workers, memory=MEMORY)
    return stateful.StatefulDataLoader(
        MapDataset(samples),
        batch_size=16,
        sampler=sampler,
        num_workers=num_workers,
        collate_fn=collate,
        multiprocessing_context="fork" if num_workers else None,
    )


def stream_loader(samples: Samples, num_workers: int) -> Any:
    return stateful.StatefulDataLoader(
        IterableDataset(samples, batch_size=16, memory=MEMORY),
        batch_size=None,
        num_workers=num_workers,
        collate_fn=collate,
        multiprocessing_context="fork" if num_workers else None,
    )


MADE = {"map": map_loader, "stream": stream_loader}


def place_of(loader: Any) -> Any:
    """Return the object whose epoch is set: the sampler, or the dataset."""
    dataset = loader.dataset
    return dataset if isinstance(dataset, IterableDataset) else loader.sampler


def ours_in(state: Any) -> list[Any]:
    """Return xloader's states, wherever torchdata has put them."""
    if not isinstance(state, dict):
        return []
    if "plan" in state:
        return [state]
    return [own for part in state.values() for own in ours_in(part)]


@pytest.mark.parametrize("num_workers", [0, 2])
@pytest.mark.parametrize("kind", ["map", "stream"])
def test_the_rest_comes_and_nothing_else_is_read(
    store: CountingStore, kind: str, num_workers: int
) -> None:
    samples = samples_of(store)
    first = MADE[kind](samples, num_workers)
    place_of(first).set_epoch(EPOCH)
    whole, states = [], [through_json(first.state_dict())]
    for batch in first:
        whole.append(contents(batch))
        states.append(through_json(first.state_dict()))
    place_of(first).set_epoch(EPOCH + 1)
    after = [contents(batch) for batch in first]
    assert len(whole) == len(after) == 16
    assert ours_in(states[5])
    # torchdata's own state, and one of xloader's, or one for each worker of a stream.
    num_states = num_workers if kind == "stream" and num_workers else 1
    assert len(json.dumps(states[5])) < 1000 + 2048 * num_states
    for step in (5, 16) if num_workers else (0, 5, 15, 16):
        other = MADE[kind](samples, num_workers)
        other.load_state_dict(states[step])
        store.reset()
        assert [contents(batch) for batch in other] == whole[step:]
        # A sampler that resumes at the same place predicts the same reads.
        told = ChunkSampler(samples, batch_size=16, num_workers=num_workers, memory=MEMORY)
        told.resume(EPOCH, step)
        assert store.num_reads == told.explain().num_reads
        if kind == "map":
            assert other.sampler.epoch == EPOCH + 1
        else:
            other.dataset.set_epoch(EPOCH + 1)
        assert [contents(batch) for batch in other] == after


@pytest.mark.parametrize("num_workers", [0, 2])
@pytest.mark.parametrize("kind", ["map", "stream"])
def test_stopping_often_and_between_epochs(folder: Path, kind: str, num_workers: int) -> None:
    samples = samples_of(folder)
    plain = MADE[kind](samples, num_workers)
    expected = []
    for epoch in range(2):
        place_of(plain).set_epoch(epoch)
        expected += [contents(batch) for batch in plain]
    found: list[Any] = []
    state: Any = {}
    # The stops lie within an epoch, in the next epoch, and after the end of both.
    for num_batches, epoch in ((3, 0), (4, 0), (9, 0), (16, 1)):
        loader = MADE[kind](samples, num_workers)
        loader.load_state_dict(state)
        place_of(loader).set_epoch(epoch)
        batches = iter(loader)
        found += [contents(next(batches)) for _ in range(num_batches)]
        if len(found) % 16 == 0:
            assert next(batches, None) is None
        state = through_json(loader.state_dict())
    assert found == expected


@pytest.mark.parametrize("num_workers", [0, 2])
def test_any_rank_brings_back_any_other(folder: Path, num_workers: int) -> None:
    samples = samples_of(folder)

    def ranks(size: int) -> list[Any]:
        own = []
        for rank in range(size):
            options = {
                "batch_size": 16 // size,
                "world": xloader.World(rank, size),
                "plan": xloader.PlanRules(lanes=4),
            }
            sampler = ChunkSampler(samples, num_workers=num_workers, memory="400KiB", **options)
            own.append(
                stateful.StatefulDataLoader(
                    MapDataset(samples),
                    batch_size=16 // size,
                    sampler=sampler,
                    num_workers=num_workers,
                    collate_fn=collate,
                    multiprocessing_context="fork" if num_workers else None,
                )
            )
        return own

    def global_batches(loaders: list[Any]) -> list[list[int]]:
        steps = zip(*loaders, strict=True)
        return [[int(i) for b in step for i in b.ids[~b.is_padding]] for step in steps]

    before = ranks(2)
    whole = global_batches(before)
    stopped = ranks(2)[1]
    batches = iter(stopped)
    for _ in range(7):
        next(batches)
    state = through_json(stopped.state_dict())
    for size in (1, 4):
        after = ranks(size)
        for loader in after:
            loader.load_state_dict(state)
        assert global_batches(after) == whole[7:]


@pytest.mark.parametrize("num_workers", [0, 2])
@pytest.mark.parametrize("kind", ["map", "stream"])
def test_states_of_others_are_refused_before_a_batch(
    folder: Path, kind: str, num_workers: int
) -> None:
    samples = samples_of(folder)
    loader = MADE[kind](samples, num_workers)
    next(iter(loader))
    state = json.dumps(loader.state_dict())
    other = MADE[kind](samples.select(range(200)), num_workers)
    other.load_state_dict(json.loads(state))
    with pytest.raises(StateError, match="other samples: their subset"):
        iter(other)
    broken = MADE[kind](samples, num_workers)
    broken.load_state_dict(json.loads(state.replace('"pace"', '"place"')))
    with pytest.raises(StateError, match="cannot be used"):
        iter(broken)


def test_samples_one_by_one_go_on_within_a_step(folder: Path) -> None:
    samples = samples_of(folder)

    def made() -> Any:
        dataset = IterableDataset(samples, batch_size=None, memory=MEMORY)
        return stateful.StatefulDataLoader(dataset, batch_size=10)

    whole = [batch.tolist() for (batch,) in made()]
    loader = made()
    batches = iter(loader)
    for _ in range(7):
        next(batches)
    state = through_json(loader.state_dict())
    other = made()
    other.load_state_dict(state)
    assert [batch.tolist() for (batch,) in other] == whole[7:]


def test_a_state_among_rows_that_an_earlier_version_filled_up_is_the_end(folder: Path) -> None:
    """Ranks of 42 and 41 samples had two batches of 32 rows. Now the last one has 10."""
    samples = samples_of(folder).select(range(83))

    def made() -> IterableDataset:
        return IterableDataset(samples, batch_size=None, memory=MEMORY, world=xloader.World(0, 2))

    rows = iter(made())
    for _ in range(40):
        next(rows)
    state = rows.state_dict()
    assert (state["step"], state["row"]) == (1, 8)
    assert len(list(rows)) == len(made()) - 40 == 2
    for row, num_left in ((9, 1), (10, 0), (31, 0)):
        again = iter(made())
        again.load_state_dict(sign({**state, "row": row}))
        assert len(list(again)) == num_left
    with pytest.raises(StateError, match="its row lies outside its batch"):
        iter(made()).load_state_dict(sign({**state, "row": 32}))


def test_batches_as_lists_go_on(folder: Path) -> None:
    samples = samples_of(folder)

    def made() -> Any:
        sampler = ChunkSampler(samples, batch_size=16, memory=MEMORY)
        return stateful.StatefulDataLoader(
            MapDataset(samples), batch_sampler=sampler.batches(), collate_fn=collate
        )

    whole = [contents(batch) for batch in made()]
    loader = made()
    for _, _ in zip(range(6), loader, strict=False):
        pass
    other = made()
    other.load_state_dict(through_json(loader.state_dict()))
    assert [contents(batch) for batch in other] == whole[6:]
