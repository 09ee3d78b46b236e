"""Processes that run scripts of trainers, alone or as ranks under torchrun's own agent.

Each begins as a copy of the test's fork server, which has imported PyTorch and xloader: to import
them takes seconds. The agent is set up as by ``torchrun --standalone --nproc-per-node NUM``. No
rank is a copy of the agent: that has threads, and a lock that one of them holds would stay locked.
"""

from __future__ import annotations

import ast
import atexit
import multiprocessing
import os
import runpy
import signal
import sys
import tempfile
import warnings
from multiprocessing import forkserver
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
GUARD = 100.0
"""Seconds after which a script that has not ended is killed."""
TRAINERS = {"accelerate", "lightning", "transformers"}
"""Libraries that take seconds to import, and that the fork server of the test does not have."""
LAUNCHERS = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "NODE_RANK", "MASTER_ADDR", "MASTER_PORT")


def plain_environ() -> dict[str, str]:
    """The environment of a new process, without the variables that a trainer left in this one."""
    environ = {name: value for name, value in os.environ.items() if name not in LAUNCHERS}
    return environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT), "PYTHONWARNINGS": "ignore"}


def run_script(
    script: str | Path,
    *arguments: object,
    num_ranks: int = 0,
    folder: Path = ROOT,
    **environ: str,
) -> None:
    """Run a script of this folder alone, or in ranks, and fail if it fails."""
    if "forkserver" not in multiprocessing.get_all_start_methods():
        pytest.skip("this system has no fork server")
    path, texts = str(Path(__file__).parent / script), list(map(str, arguments))
    context = multiprocessing.get_context("forkserver")
    with tempfile.NamedTemporaryFile() as output:
        place = (output.name, folder, plain_environ() | environ)
        process = context.Process(target=begin, args=(place, num_ranks, path, texts))
        process.start()
        process.join(GUARD)
        if process.exitcode is None:
            assert process.pid is not None
            os.killpg(process.pid, signal.SIGKILL)
            process.join()
        assert process.exitcode == 0, output.read().decode("utf-8", "replace")[-6000:]


Place = tuple[str, Path, dict[str, str]]
"""The file to write to instead of the terminal, the folder, and the environment."""


def begin(place: Place, num_ranks: int, path: str, arguments: list[str]) -> None:
    """Run the script in this new process, or in ranks that it starts."""
    os.setsid()
    os.environ.clear()
    if num_ranks == 0:
        run_as_main(place, path, arguments)
    else:
        go_to(place)
        launch(place, num_ranks, path, arguments)


def go_to(place: Place) -> None:
    output, folder, environ = place
    descriptor = os.open(output, os.O_WRONLY | os.O_APPEND)
    for number in (1, 2):
        os.dup2(descriptor, number)
    os.chdir(folder)
    # From here, processes that this one starts begin.
    multiprocessing.process.ORIGINAL_DIR = str(folder)
    os.environ.update(environ)
    warnings.simplefilter("ignore")


def run_as_main(place: Place, path: str, arguments: list[str]) -> None:
    """Run the script as Python does that is started with it."""
    import torch

    go_to(place)
    torch.set_num_threads(1)
    sys.argv = [path, *arguments]
    try:
        runpy.run_path(path, run_name="__main__")
    except SystemExit as end:
        # The agent waits for ranks that return.
        if end.code:
            raise
    finally:
        atexit._run_exitfuncs()


def launch(place: Place, num_ranks: int, path: str, arguments: list[str]) -> None:
    """Run the script in ranks of torchrun's agent, which fails if one of them fails."""
    from torch.distributed.launcher.api import LaunchConfig, elastic_launch

    names = imports(path)
    if TRAINERS & {name.partition(".")[0] for name in names}:
        # A fork server of the agent's own imports them once for all ranks.
        own_fork_server()
        multiprocessing.set_forkserver_preload(
            ["torch._dynamo", "torch.distributed.launcher.api", *names]
        )
    config = LaunchConfig(
        min_nodes=1,
        max_nodes=1,
        nproc_per_node=num_ranks,
        rdzv_backend="c10d",
        rdzv_endpoint="localhost:0",
        start_method="forkserver",
        max_restarts=0,
    )
    elastic_launch(config, run_as_main)(place, path, arguments)


def own_fork_server() -> None:
    """Let this process start a fork server instead of asking that of the test."""
    server: Any = forkserver._forkserver  # type: ignore[attr-defined]
    server.__init__()


def imports(path: str) -> list[str]:
    """The modules that a script imports at its top."""
    names = []
    for part in ast.parse(Path(path).read_text("utf-8")).body:
        if isinstance(part, ast.Import):
            names += [alias.name for alias in part.names]
        elif isinstance(part, ast.ImportFrom) and part.module:
            names += [part.module]
    return names
