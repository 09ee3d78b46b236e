"""PerProcess: one handle per process, never shared across a fork or in a pickle."""

from __future__ import annotations

import os
import pickle
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from xloader.errors import ForkError
from xloader.sources.stores import per_process as handles
from xloader.sources.stores.per_process import Home, PerProcess


def in_a_child(monkeypatch: pytest.MonkeyPatch) -> None:
    child = os.getpid() + 1
    monkeypatch.setattr(os, "getpid", lambda: child)


def test_opened_once_by_many_threads():
    opened = []
    handle = PerProcess(lambda: opened.append(None) or object(), "a file")
    with ThreadPoolExecutor(8) as pool:
        handles = set(pool.map(lambda _: handle.get(), range(100)))
    assert len(handles) == len(opened) == 1


def test_a_lock_held_while_forking_does_not_hang_the_child(monkeypatch: pytest.MonkeyPatch):
    handle = PerProcess(list, "a file")
    begun, is_forked = threading.Event(), threading.Event()

    def open_slowly() -> list[object]:
        begun.set()
        assert is_forked.wait(10)
        return []

    handle._make = open_slowly
    parent = threading.Thread(target=handle._open, daemon=True)
    parent.start()
    assert begun.wait(10)
    handle._make = list
    in_a_child(monkeypatch)
    opened = []
    thread = threading.Thread(target=lambda: opened.append(handle.get()), daemon=True)
    thread.start()
    thread.join(10)
    is_forked.set()
    parent.join(10)
    assert opened == [[]]


def test_a_home_knows_a_fork_of_its_own_wherever_it_is_packed(monkeypatch: pytest.MonkeyPatch):
    home = Home()
    packed = pickle.dumps(home)
    in_a_child(monkeypatch)
    for in_child in (home, pickle.loads(packed)):
        with pytest.raises(ForkError, match="a client was opened before"):
            in_child.check("a client")
    # A handle that is made in the child, or unpickled in a freshly started process, is allowed
    # there.
    Home().check("a client")
    monkeypatch.setattr(handles, "_LOADED_IN", os.getpid())
    started_anew = pickle.loads(packed)
    started_anew.check("a client")
    in_a_child(monkeypatch)
    with pytest.raises(ForkError):
        started_anew.check("a client")
