"""Positions of a loader or sampler: where an iteration is, and where the next one starts."""

from __future__ import annotations

import numpy as np
import pytest
import xarray as xr

import xloader
from xloader.errors import ClosedError, OptionError
from xloader.loader.loader import Loader
from xloader.loader.ranks.cursor import Cursor, Position


def test_an_iteration_counts_its_batches_and_ends_in_the_next_epoch() -> None:
    cursor = Cursor()
    assert cursor.begin() == 1
    cursor.count(Position(0, 1), num_steps=2)
    assert (cursor.position, cursor.start) == (Position(0, 1), Position(0))
    cursor.count(Position(0, 2), num_steps=2)
    assert cursor.position == cursor.start == Position(1)


def test_an_iteration_that_counts_nothing_keeps_the_position_given_to_resume() -> None:
    cursor = Cursor()
    cursor.resume(Position(3, 5))
    cursor.set_epoch(3)
    assert [cursor.begin(), cursor.begin()] == [1, 2]
    assert cursor.start == Position(3, 5)
    cursor.count(Position(3, 6), num_steps=9)
    assert cursor.start == Position(3)


def test_an_iteration_of_another_epoch_than_the_chosen_one_counts_nothing() -> None:
    cursor = Cursor()
    cursor.begin()
    cursor.count(Position(0, 4), num_steps=9)
    cursor.set_epoch(2)
    cursor.count(Position(0, 5), num_steps=9)
    assert cursor.position == cursor.start == Position(2)
    # The first epoch is chosen again, and the iteration under way counts on.
    cursor.set_epoch(0)
    assert cursor.position == Position(0)
    cursor.count(Position(0, 6), num_steps=9)
    assert (cursor.position, cursor.start) == (Position(0, 6), Position(0))


def test_an_epoch_without_steps_is_over_when_it_is_counted() -> None:
    cursor = Cursor()
    cursor.load(Position(0), num_steps=0)
    assert cursor.position == Position(0)
    cursor.count(Position(0), num_steps=0)
    assert cursor.position == Position(1)


def test_a_state_at_the_end_of_an_epoch_continues_with_the_next() -> None:
    cursor = Cursor()
    cursor.load(Position(2, 9), num_steps=9)
    assert cursor.start == Position(3)
    # A training loop that names the same position asks for the empty rest of the epoch.
    cursor.resume(Position(2, 9))
    assert cursor.start == Position(2, 9)


@pytest.mark.parametrize("epoch", [-1, 1 << 63, True, 1.0, "0"])
def test_what_is_no_epoch_changes_nothing(epoch: int) -> None:
    cursor = Cursor()
    cursor.resume(Position(1, 2))
    with pytest.raises(OptionError, match="no such epoch"):
        cursor.set_epoch(epoch)
    assert cursor.start == Position(1, 2)


def make_loader() -> Loader:
    ds = xr.Dataset({"t": (("time",), np.arange(40.0))}).chunk(time=10)
    return xloader.open(ds).window(time=1).loader(batch_size=8, output="numpy")


def test_an_iterator_switches_to_another_epoch_unless_its_run_was_ended() -> None:
    with make_loader() as loader:
        state = loader.state_dict()
        switched = iter(loader)
        loader.set_epoch(1)
        whole = [batch.ids.tolist() for batch in switched]
        assert loader.epoch == 2
        loader.set_epoch(1)
        assert [batch.ids.tolist() for batch in loader] == whole
        ended = iter(loader)
        loader.load_state_dict(state)
        with pytest.raises(ClosedError, match="the iterator is closed"):
            next(ended)
        replaced = iter(loader)
        assert len(list(loader)) == 5
        with pytest.raises(ClosedError, match="another one over the same loader began"):
            next(replaced)
