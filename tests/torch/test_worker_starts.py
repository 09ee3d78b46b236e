"""The start of workers: their start method, what is sent to them, and what they import."""

from __future__ import annotations

import json
import multiprocessing
import os
import pickle
import subprocess
import sys
import types
from multiprocessing import forkserver
from pathlib import Path
from typing import Any

import pytest

import xloader
from tests.torch.waves import write_times
from xloader import Samples
from xloader.torch import IterableDataset, MapDataset, data_loader, worker_setup

pytestmark = pytest.mark.filterwarnings("ignore::xloader.errors.PlanWarning")

IMPORTED = """
import json, pickle, sys
import torch.utils.data, xarray, zarr
before = {*sys.modules}
pickle.loads(sys.stdin.buffer.read())
print(json.dumps(sorted({*sys.modules} - before)))
"""

TRAINING = """
import json, multiprocessing, os, sys
from multiprocessing import forkserver
import xloader
from xloader.torch import data_loader, collate

def with_modules(rows):
    return collate(rows), sorted(sys.modules)

if __name__ == "__main__":
    multiprocessing.set_forkserver_preload(["__main__", "colorsys"])
    samples = xloader.open(sys.argv[1]).window(time=1)
    loader = data_loader(
        samples, 8, memory="64KiB", num_workers=1, multiprocessing_context="forkserver",
        collate_fn=with_modules,
    )
    _, modules = next(iter(loader))
    server = forkserver._forkserver
    folder = f"/proc/{server._forkserver_pid}/task"
    threads = len(os.listdir(folder)) if os.path.exists(folder) else 1
    print(json.dumps([server._preload_modules, modules, threads]))
"""


@pytest.fixture(scope="module")
def samples(tmp_path_factory: pytest.TempPathFactory) -> Samples:
    path = write_times(tmp_path_factory.mktemp("stores") / "times.zarr")
    return xloader.open(path).window(time=1)


def outcome(*args: object, given: bytes = b"") -> Any:
    """What a program of its own prints, which must not be disturbed by threads of OpenBLAS."""
    root = Path(xloader.__file__).parents[1]
    env = {**os.environ, "PYTHONPATH": str(root), "OPENBLAS_NUM_THREADS": "1"}
    command = [sys.executable, "-W", "ignore", *map(str, args)]
    return json.loads(subprocess.run(command, input=given, env=env, check=True, stdout=-1).stdout)


@pytest.mark.parametrize("context", [None, "fork", "spawn"])
def test_the_start_method_is_that_of_pytorch_or_of_the_user(
    samples: Samples, context: str | None
) -> None:
    if context not in (None, *multiprocessing.get_all_start_methods()):
        pytest.skip("this system has no such method")
    loader = data_loader(samples, 8, num_workers=1, multiprocessing_context=context)
    chosen = loader.multiprocessing_context
    assert (None if chosen is None else chosen.get_start_method()) == context


@pytest.mark.parametrize(("door", "most"), [(MapDataset, 4), (IterableDataset, 16)])
def test_little_is_sent_to_a_worker_and_it_imports_little(
    samples: Samples, door: type[Any], most: int
) -> None:
    sent = pickle.dumps(door(samples, memory="64KiB"))
    assert len(sent) <= most << 10
    imported = outcome("-c", IMPORTED, given=sent)
    assert "xloader.torch.worker_reader" in imported
    kept_out = ("xloader.loader.loader", "xloader.samples.loader_verbs", "xloader.torch.dataloader")
    unused = ("dask", "matplotlib", "xloader.jobs", "xloader.device", "xloader.mosaic", *kept_out)
    assert [name for name in imported if name.startswith(unused)] == []
    assert sum(name.startswith("xloader") for name in imported) <= 170


def test_a_server_of_forks_has_ready_what_a_worker_imports(
    samples: Samples, tmp_path: Path
) -> None:
    if "forkserver" not in multiprocessing.get_all_start_methods():
        pytest.skip("this system has no server of forks")
    script = tmp_path / "training.py"
    script.write_text(TRAINING)
    chosen, modules, threads = outcome(script, samples.recipe.source.name)
    assert chosen[:2] == ["__main__", "colorsys"]
    # A thread of the server would not be there in its forks, and could leave locks behind.
    assert threads == 1
    text = f"import json, sys\nfor name in {chosen[1:]!r}: __import__(name)\n"
    ready = outcome("-c", text + "print(json.dumps(sorted(sys.modules)))")
    late = {*modules} - {*ready}
    assert [name for name in late if not name.startswith(("multiprocessing", "__"))] == []


def test_only_a_server_that_does_not_run_yet_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    server: Any = forkserver.ForkServer()
    server.set_forkserver_preload(["__main__", "colorsys"])
    starting = types.SimpleNamespace(method="spawn")
    monkeypatch.setattr(forkserver, "_forkserver", server)
    monkeypatch.setattr(worker_setup, "get_spawning_popen", lambda: starting)
    worker_setup.preload_for_workers()
    assert server._preload_modules == ["__main__", "colorsys"]
    starting.method = "forkserver"
    worker_setup.preload_for_workers()
    assert server._preload_modules[:3] == ["__main__", "colorsys", "torch.utils.data"]
    assert "xloader.sources.base" in server._preload_modules
    server._forkserver_pid = os.getpid()
    server.set_forkserver_preload(["colorsys"])
    worker_setup.preload_for_workers()
    assert server._preload_modules == ["colorsys"]
