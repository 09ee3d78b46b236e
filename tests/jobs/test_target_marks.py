"""Tasks write into a target only while its mark is there, and who removes it waits for them."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest
from zarr.storage import LocalStore

from tests.jobs.test_materialize_restarts import BETWEEN, source_at
from xloader.errors import MissingChunkError, TargetError
from xloader.jobs.materialize.target_records import new_mark, remove_mark, writing
from xloader.jobs.materialize.training_store import StoreOptions, TrainingStore
from xloader.sources.stores.writable_store import WritableStore


class OneProcess:
    """A cluster whose only worker is this process. The first answer is noted."""

    def __init__(self) -> None:
        self.answers: list[int] = []
        self.has_asked = threading.Event()

    def ask_workers(self, what: str, function: Any, *args: Any) -> list[int]:
        self.answers.append(function(*args))
        self.has_asked.set()
        return self.answers[-1:]


@pytest.fixture
def store(tmp_path: Path) -> WritableStore:
    store = WritableStore(LocalStore(tmp_path), "a target")
    store.put("begun", b"1")
    return store


def test_nothing_is_written_without_the_mark(store: WritableStore) -> None:
    with writing(store, {"begun": b"1"}), writing(store, {}):
        pass
    for marks in ({"begun": b"2"}, {"begun": b"1", "other": b"1"}):
        with (
            pytest.raises(TargetError, match="a worker does not find at a target"),
            writing(store, marks),
        ):
            raise AssertionError
    assert new_mark() != new_mark()


def test_removing_the_mark_waits_for_what_is_being_written(store: WritableStore) -> None:
    tasks: Any = OneProcess()
    with writing(store, {"begun": b"1"}):
        remover = threading.Thread(target=remove_mark, args=(store, "begun", tasks))
        remover.start()
        assert tasks.has_asked.wait(60)
        # From now on no other task begins to write.
        with pytest.raises(TargetError), writing(store, {"begun": b"1"}):
            raise AssertionError
        assert remover.is_alive()
    remover.join(60)
    assert not remover.is_alive()
    assert tasks.answers[0] == 1
    assert tasks.answers[-1] == 0
    # Without a cluster, nobody is asked.
    remove_mark(store, "begun", None)


def test_an_intermediate_store_that_is_removed_under_a_task(tmp_path: Path) -> None:
    """Its chunks never become fill values of the target."""
    samples = source_at(tmp_path / "source.zarr")
    options = StoreOptions(chunks={"time": 4}, shards={"time": 8}, memory=BETWEEN, threads=1)
    store = TrainingStore(samples.recipe, tmp_path / "t.zarr", options)
    target, job = store.store, store._rewrites[0]
    assert job.middle is not None
    target.put("begun", b"1")
    store.records.marks = {"begun": b"1"}
    job.fill_middle()
    writer = job.last
    # The mark goes first, then the chunks, in any order.
    (mark,) = job.middle.mark
    data = target.get(mark)
    assert data is not None
    target.remove(mark)
    with pytest.raises(TargetError, match="a worker does not find"):
        writer.write(writer.sections(), lambda _: None)
    target.put(mark, data)
    target.delete(f"{job.middle.path}/t/c/0")
    with pytest.raises(MissingChunkError):
        writer.write(writer.sections(), lambda _: None)
    assert not target.keys("t/c")
