"""Before training, trainers ask a loader for an iterator and drop it; this changes nothing."""

from __future__ import annotations

import threading

import numpy as np
import pytest
import xarray as xr

import xloader
from xloader.core.ranks import World, resolve_world
from xloader.errors import ClosedError, OptionError
from xloader.loader.loader import Loader
from xloader.loader.ranks.state import sign
from xloader.testing import CountingStore, write_store

pytestmark = pytest.mark.filterwarnings("ignore::xloader.errors.PlanWarning")


@pytest.fixture
def store() -> CountingStore:
    values = np.arange(320, dtype=np.float32).reshape(80, 4)
    return CountingStore(write_store(xr.Dataset({"t": (("time", "x"), values)}), {"t": (8, 4)}))


@pytest.fixture
def loader(store: CountingStore) -> Loader:
    samples = xloader.open(store).window(time=1)
    return samples.loader(batch_size=8, memory="1KiB", output="numpy", prefetch=1)


def test_an_iterator_that_nobody_asks_reads_nothing(loader: Loader, store: CountingStore) -> None:
    before = threading.active_count()
    for _ in range(3):
        iterator = iter(loader)
    assert threading.active_count() == before
    assert store.num_reads == 0
    expected = loader.explain().num_reads
    assert len(list(iterator)) == 10
    assert store.num_reads == expected


def test_an_iterator_that_nobody_asks_keeps_the_place(loader: Loader) -> None:
    whole = [batch.ids.tolist() for batch in loader]
    loader.set_epoch(0)
    for _ in zip(range(4), loader, strict=False):
        state = loader.state_dict()
    loader.load_state_dict(state)
    iter(loader)
    assert loader.explain().num_steps == 6
    assert loader.state_dict()["step"] == 4
    assert [batch.ids.tolist() for batch in loader] == whole[4:]


def test_an_epoch_may_be_chosen_until_the_first_batch_is_asked_for(loader: Loader) -> None:
    """The epoch may be set after iter(), as Lightning does when it resumes from a checkpoint."""
    orders = []
    for epoch in range(3):
        loader.set_epoch(epoch)
        orders.append([batch.ids.tolist() for batch in loader])
    loader.set_epoch(1)
    loader.load_state_dict(sign({**loader.state_dict(), "step": 4}))
    iterator = iter(loader)
    loader.set_epoch(2)
    first = next(iterator).ids.tolist()
    assert loader.report().num_steps == 1
    loader.set_epoch(0)
    assert [first, *(batch.ids.tolist() for batch in iterator)] == orders[2]
    assert [batch.ids.tolist() for batch in loader] == orders[0]


def test_an_iterator_is_over_once_a_state_is_loaded_or_the_loader_closed(loader: Loader) -> None:
    iterator = iter(loader)
    loader.load_state_dict(sign({**loader.state_dict(), "epoch": 1}))
    with pytest.raises(ClosedError):
        next(iterator)
    iterator = iter(loader)
    loader.close()
    loader.set_epoch(5)
    with pytest.raises(ClosedError):
        next(iterator)


LIGHTNING = {"LOCAL_RANK": "1", "NODE_RANK": "0", "WORLD_SIZE": "4"}


def test_ranks_that_lightning_starts_itself() -> None:
    """Lightning starts ranks without RANK, which only its process group knows later."""
    assert resolve_world(environ=LIGHTNING) == World(1, 4)
    assert resolve_world(environ={**LIGHTNING, "RANK": "2"}) == World(2, 4)
    # After training, Lightning removes WORLD_SIZE and leaves the other variables.
    assert resolve_world(environ={"LOCAL_RANK": "0", "NODE_RANK": "0"}) == World()


@pytest.mark.parametrize(
    "environ", [{**LIGHTNING, "NODE_RANK": "1"}, {"WORLD_SIZE": "4", "LOCAL_RANK": "1"}]
)
def test_ranks_of_further_nodes_are_not_guessed(environ: dict[str, str]) -> None:
    with pytest.raises(OptionError, match="RANK is not a whole number"):
        resolve_world(environ=environ)
