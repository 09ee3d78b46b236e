"""Epochs of a loader: which epoch comes next, when it ends, and that no thread stays."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import threading
import warnings
from itertools import islice
from typing import Any

import numpy as np
import pytest
import xarray as xr

import xloader
from xloader import Samples
from xloader.errors import ClosedError, EpochWarning
from xloader.testing import write_store

# With memory for a few chunks, threads wait for each other, and mixing is poor.
pytestmark = pytest.mark.filterwarnings("ignore::xloader.errors.PlanWarning")

STEPS = 40


def make_samples() -> Samples:
    """Make forty samples of 400 bytes in ten chunks; the values are the ids."""
    values = np.arange(STEPS, dtype=np.float32)[:, None].repeat(100, axis=1)
    dataset = xr.Dataset({"t": (("time", "x"), values)})
    return xloader.open(write_store(dataset, {"t": (4, 100)})).window(time=1)


def make_loader(**options: Any) -> xloader.Loader:
    return make_samples().loader(**{"batch_size": 6, "output": "numpy", **options})


def ids_of(batches: Any) -> list[int]:
    return [int(i) for batch in batches for i in batch.ids]


def running() -> list[str]:
    return [t.name for t in threading.enumerate() if t.name.startswith("xloader-")]


def test_epochs_move_on_by_themselves() -> None:
    with make_loader() as loader, make_loader() as other:
        first, second = ids_of(loader), ids_of(loader)
        assert loader.epoch == 2
        assert first != second
        assert sorted(first) == sorted(second) == list(range(STEPS))
        other.set_epoch(1)
        assert ids_of(other) == second
        other.sampler.set_epoch(0)
        assert ids_of(other) == first


def repeats_told(loader: Any, *nums: int) -> list[bool]:
    """Take so many batches from each iteration, and tell which ones warned of a repeated epoch."""
    told = []
    for num in nums:
        with warnings.catch_warnings(record=True) as seen:
            warnings.simplefilter("always", EpochWarning)
            assert len(list(islice(loader, num))) == num
        told += [any(issubclass(one.category, EpochWarning) for one in seen)]
    return told


@pytest.mark.parametrize(
    "options", [{}, {"plan": xloader.PlanRules(lanes=2)}, {"world": xloader.World(1, 2)}]
)
def test_the_same_batches_again_are_told_once(options: dict[str, Any]) -> None:
    with make_loader(batch_size=2, **options) as loader:
        assert repeats_told(loader, 2, 2, 2) == [False, True, False]
    # One batch may be a look at the data. Three of them, which are all the same, are no look.
    with make_loader(batch_size=2, **options) as loader:
        assert repeats_told(loader, 1, 1, 1, 1, 1) == [False, False, False, True, False]
    with make_loader(batch_size=2, **options) as loader:
        whole = len(loader)
        assert repeats_told(loader, 1, 1, whole, whole, 1, 1, whole) == [False] * 7
        assert repeats_told(loader, 2, 1) == [False, True]


def test_what_is_no_repetition() -> None:
    with make_loader(shuffle=False) as loader:
        assert repeats_told(loader, 3, 3, 3) == [False] * 3
    with make_loader(batch_size=2) as loader:
        for epoch in (0, 0, 1, 2, 0):
            loader.set_epoch(epoch)
            assert repeats_told(loader, 3) == [False]
        for _ in range(2):
            loader.load_state_dict(loader.state_dict())
            assert repeats_told(loader, 2) == [False]
        # An iterator that is never used, as trainers make them, hides nothing.
        iter(loader)
        with pytest.warns(EpochWarning, match="epoch 0 .*set_epoch") as caught:
            next(iter(loader))
        assert caught[0].filename == __file__


def test_the_last_batch_ends_the_epoch() -> None:
    """The epoch ends with its last batch, because a loop that counts steps never asks for more."""
    with make_loader() as loader:
        iterator = iter(loader)
        for _ in range(len(loader) - 1):
            next(iterator)
        assert loader.epoch == 0
        next(iterator)
        assert loader.epoch == 1
        assert list(iterator) == []
        assert list(iterator) == []
        assert loader.epoch == 1


def test_an_epoch_chosen_while_another_runs_comes_next() -> None:
    with make_loader() as loader, make_loader() as other:
        for number, _ in enumerate(loader):
            if number == 2:
                loader.set_epoch(7)
        assert loader.epoch == 7
        other.set_epoch(7)
        assert ids_of(loader) == ids_of(other)


def test_a_loop_within_a_loop_over_the_same_loader_says_what_happened() -> None:
    """The inner loop runs to its end; the outer one gets an error that names the cause."""
    with make_loader() as loader:
        words = (
            r"^this iteration has ended, because another one over the same loader began. Given: .*"
            r"nested loops. To mend it: "
            r"make a second loader with samples.loader\(...\), and iterate over it"
        )
        # Nested loops run a whole inner loop within each turn of the outer one.
        nested = (ids_of(loader) for _ in loader)
        assert sorted(next(nested)) == list(range(STEPS))
        with pytest.raises(ClosedError, match=words):
            next(nested)


def test_an_iterator_of_a_closed_loader_says_that_it_is_closed() -> None:
    with make_loader() as loader:
        old = iter(loader)
        next(old)
        new = iter(loader)
        next(new)
    with pytest.raises(ClosedError, match=r"^the iterator is closed. .* make a new loader\.$"):
        next(new)


def test_explain_speaks_of_what_comes_next() -> None:
    with make_loader(memory="12kB", batch_size=4) as loader:
        explanations = []
        for epoch in range(3):
            assert loader.epoch == epoch
            explanations.append(loader.explain())
            for _ in loader:
                pass
        loader.set_epoch(1)
        assert loader.explain() == explanations[1]
    with make_loader() as loader:
        assert loader.explain().num_reads == 10
        ids_of(loader)
        assert loader.explain().num_reads == 0


def test_seeds_and_shuffle() -> None:
    with make_loader(seed=1) as one, make_loader(seed=2) as two, make_loader(seed=1) as same:
        ids = ids_of(one)
        assert ids == ids_of(same)
        assert ids != ids_of(two)
    with make_loader(shuffle=False) as loader:
        assert ids_of(loader) == ids_of(loader) == list(range(STEPS))


def test_an_iterator_switches_to_another_epoch_unless_its_run_was_ended() -> None:
    with make_loader() as loader:
        state = loader.state_dict()
        switched = iter(loader)
        loader.set_epoch(1)
        whole = ids_of(switched)
        assert loader.epoch == 2
        loader.set_epoch(1)
        assert ids_of(loader) == whole
        ended = iter(loader)
        loader.load_state_dict(state)
        with pytest.raises(ClosedError, match="the iterator is closed"):
            next(ended)
        replaced = iter(loader)
        assert len(list(loader)) == len(loader)
        with pytest.raises(ClosedError, match="another one over the same loader began"):
            next(replaced)


def test_a_closed_loader_is_closed() -> None:
    loader = make_loader()
    iterator = iter(loader)
    next(iterator)
    assert running()
    loader.close()
    loader.close()
    assert running() == []
    with pytest.raises(ClosedError, match=r"the loader is closed.*make a new loader"):
        iter(loader)
    with pytest.raises(ClosedError):
        next(iterator)
    assert loader.report().num_steps == 1


def fail_at_the_third_step(loader: xloader.Loader, kind: type[BaseException]) -> None:
    for number, _ in enumerate(loader):
        if number == 2:
            assert running()
            raise kind


def test_an_abandoned_iterator_leaves_no_thread() -> None:
    """Dropping the last reference stops the threads, without garbage collection."""
    gc.collect()
    gc.disable()
    try:
        loader = make_loader()
        for _ in loader:
            assert running()
            break
        assert running() == []
        iterator = iter(loader)
        next(iterator)
        del loader
        assert running()
        del iterator
        assert running() == []
    finally:
        gc.enable()


def test_a_loader_made_in_the_loop_lives_as_long_as_it() -> None:
    assert len(ids_of(make_loader())) == STEPS
    assert running() == []


@pytest.mark.parametrize("kind", [ValueError, KeyboardInterrupt])
def test_an_error_in_the_training_loop(kind: type[BaseException]) -> None:
    """After an error in the training loop, the next loop repeats the epoch with all its samples."""
    loader = make_loader(memory="12kB", batch_size=4)
    with pytest.raises(kind):
        fail_at_the_third_step(loader, kind)
    assert running() == []
    assert loader.epoch == 0
    with pytest.warns(EpochWarning, match="load_state_dict"):
        assert sorted(ids_of(loader)) == list(range(STEPS))
    loader.close()


def _forked(body: str) -> subprocess.CompletedProcess[str]:
    """Run a program that forks at the worst moment, while a worker holds the lock."""
    program = f"""
import os, sys, threading
from tests.test_loader import make_loader
loader = make_loader(memory="12kB", batch_size=4)
iterator = iter(loader)
next(iterator)
is_held, go_on = threading.Event(), threading.Event()
def hold():
    with iterator.run._lock:
        is_held.set()
        go_on.wait()
threading.Thread(target=hold).start()
is_held.wait()
pid = os.fork()
if pid:
    go_on.set()
{body}
assert sum(1 for _ in iterator) == len(loader) - 1
sys.exit(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
"""
    command = [sys.executable, "-W", "ignore", "-c", program]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this platform has no fork")
def test_an_iterator_is_of_no_use_in_a_forked_child() -> None:
    """In a forked child the iterator raises an error at once, and the parent continues."""
    done = _forked("""
if pid == 0:
    try:
        next(iterator)
    except RuntimeError as error:
        print(type(error).__name__, error, flush=True)
        os._exit(7)
    os._exit(8)
""")
    assert done.returncode == 7, done.stderr
    assert "ForkError" in done.stdout
    assert "To mend it: make the loader in the child" in done.stdout
    assert "spawn" in done.stdout


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this platform has no fork")
def test_a_forked_child_leaves_in_peace() -> None:
    """Dropping the parent's iterator and loader in the child neither hangs nor fails."""
    done = _forked("""
if pid == 0:
    loader.close()
    del iterator, loader
    sys.exit(5)
""")
    assert done.returncode == 5, done.stderr
