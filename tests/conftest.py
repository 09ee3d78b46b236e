"""Settings of all tests: leaked threads fail, real data are optional, chance is fixed."""

from __future__ import annotations

import gc
import multiprocessing
import os
import re
import signal
import sys
import sysconfig
import threading
from collections import Counter
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import hypothesis
import pytest

hypothesis.settings.register_profile(
    "ci",
    # Every run tries the same examples, so a test fails only because of a change in the code.
    derandomize=True,
    deadline=None,
    max_examples=20,
    suppress_health_check=[hypothesis.HealthCheck.too_slow],
    print_blob=True,
)
hypothesis.settings.register_profile("deep", deadline=None, max_examples=1000)
# The runs with the oldest and the newest dependencies try the same properties on fewer examples.
hypothesis.settings.register_profile("end", hypothesis.settings.get_profile("ci"), max_examples=5)
_PROFILE = "end" if "XLOADER_END" in os.environ else "ci"
hypothesis.settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", _PROFILE))

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # A shell lets programs in the background ignore Ctrl-C, which some tests send.
    signal.signal(signal.SIGINT, signal.default_int_handler)

if "forkserver" in multiprocessing.get_all_start_methods():
    # The server imports these once, and each worker of these tests begins as a copy of it. A server
    # without them is that of the scripts which some tests run. What is not installed is left out.
    multiprocessing.set_forkserver_preload(
        [
            *("__main__", "pytest", "torch", "torch._dynamo", "torch.distributed.launcher.api"),
            *("xloader.torch", "xloader.testing", "xloader.loader.processes.finishing_process"),
        ]
    )


IS_FREE = bool(sysconfig.get_config_var("Py_GIL_DISABLED"))
NEEDED = {
    "torch": [
        *("device", "torch", "trainers", "test_chance.py", "test_demo.py", "test_nans.py"),
        *("test_output_dtypes.py", "test_peaks.py", "test_worker.py"),
    ],
    "netCDF4": ["sources/test_files.py"],
}
"""Whole files of tests that import what may have no release for free-threaded Python."""

collect_ignore = [n for lib, ns in NEEDED.items() if IS_FREE and not find_spec(lib) for n in ns]


@pytest.hookimpl(wrapper=True)
def pytest_runtest_setup() -> Iterator[None]:
    """Skip a test whose fixtures need such a library."""
    return (yield from _skipping_what_is_missing())


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call() -> Iterator[None]:
    """Skip a test that needs such a library, here or in a process that it starts."""
    return (yield from _skipping_what_is_missing())


def _skipping_what_is_missing() -> Iterator[None]:
    try:
        return (yield)
    except Exception as error:
        missing = re.search(r"No module named '(\w+)", str(error))
        if IS_FREE and missing and not find_spec(missing[1]):
            pytest.skip(f"{missing[1]} is not installed for free-threaded Python")
        raise


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out some sets of parameters of tests marked with ``ends``, at both ends."""
    if _PROFILE != "end":
        return
    number: Counter[str] = Counter()
    kept: dict[bool, list[pytest.Item]] = {True: [], False: []}
    for item in items:
        mark = item.get_closest_marker("ends")
        name = item.nodeid.partition("[")[0]
        kept[mark is None or number[name] % mark.kwargs["every"] == 0].append(item)
        number[name] += 1
    config.hook.pytest_deselected(items=kept[False])
    items[:] = kept[True]


def pytest_collection_finish() -> None:
    """Leave what was imported and collected out of the garbage collector's searches."""
    gc.collect()
    gc.freeze()


JOIN_SECONDS = 5.0
"""Seconds that a stopping thread may take to end."""


def leaked_threads(before: set[threading.Thread], join_seconds: float) -> list[str]:
    """Return the names of xloader's threads that are new and do not end in time."""
    started = [t for t in threading.enumerate() if t not in before and t.name.startswith("xloader")]
    for thread in started:
        thread.join(join_seconds)
    return sorted(thread.name for thread in started if thread.is_alive())


@pytest.fixture(params=["native", "plain"])
def executor(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Have either executor make all batches."""
    from xloader.compiled.library import load_library

    if request.param == "plain":
        monkeypatch.setattr("xloader.engine.run.can_run_natively", lambda parts: False)
    elif load_library()[0] is None:
        pytest.skip("there is no native executor without the library")
    return str(request.param)


@pytest.fixture(autouse=True)
def _no_leaked_threads(request: pytest.FixtureRequest) -> Iterator[None]:
    before = set(threading.enumerate())
    yield
    names = leaked_threads(before, 0.0)
    if names:
        # An abandoned iterator stops its threads when it is collected, and a reference cycle delays
        # that.
        gc.collect()
        names = leaked_threads(before, JOIN_SECONDS)
    if names:
        pytest.fail(f"threads left running by {request.node.name}: {', '.join(names)}")


@pytest.fixture(autouse=True)
def _same_dask_scheduler() -> Iterator[None]:
    config = getattr(sys.modules.get("dask"), "config", None)
    before = config and config.get("scheduler", None)
    yield
    config = getattr(sys.modules.get("dask"), "config", None)
    after = config and config.get("scheduler", None)
    if after != before:
        # It would be the scheduler of all later tests, most of them far from the cause.
        config.set(scheduler=before)
        pytest.fail(f"dask's scheduler is {after!r} after this test and was {before!r} before")


@pytest.fixture(scope="session", autouse=True)
def _no_file_in_the_users_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture(scope="session")
def data_folder() -> Path:
    """The folder of real data: ``XLOADER_TEST_DATA``, or one beside the repository.

    The test is skipped if there is no such folder.
    """
    given = os.environ.get("XLOADER_TEST_DATA")
    root = Path(__file__).resolve().parents[1]
    folder = Path(given) if given else root.parent / "shared" / "data"
    if not folder.is_dir():
        pytest.skip(f"no real data: {folder} is not a folder; set XLOADER_TEST_DATA")
    return folder
