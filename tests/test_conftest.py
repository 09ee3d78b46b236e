"""The checks around every test find the faults that they look for."""

from __future__ import annotations

import threading
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

import pytest


@pytest.fixture(scope="module")
def leaked_threads():
    spec = spec_from_file_location("shared_conftest", Path(__file__).with_name("conftest.py"))
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.leaked_threads


@pytest.mark.parametrize(
    ("name", "expected"),
    [("xloader-decode-0", ["xloader-decode-0"]), ("somebody-else", [])],
)
def test_a_running_thread_is_found_by_its_name(leaked_threads, name, expected):
    before = set(threading.enumerate())
    stop = threading.Event()
    thread = threading.Thread(target=stop.wait, name=name)
    thread.start()
    try:
        assert leaked_threads(before, 0.0) == expected
        assert leaked_threads(before | {thread}, 0.0) == []
    finally:
        stop.set()
        thread.join()
    assert leaked_threads(before, 0.0) == []
