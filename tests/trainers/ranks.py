"""Ranks under torchrun's own agent: ``python -m tests.trainers.ranks NUM SCRIPT ARGUMENTS...``.

The agent is set up as by ``torchrun --standalone --nproc-per-node NUM``. But each rank begins as a
copy of a server that has imported the libraries, which takes seconds. It cannot be a copy of the
agent itself: that has threads, and a lock that one of them holds would stay locked in the copy.
"""

from __future__ import annotations

import ast
import multiprocessing
import runpy
import sys
from pathlib import Path

from torch.distributed.launcher.api import LaunchConfig, elastic_launch


def imports(path: str) -> list[str]:
    """Return the modules that a script imports at its top, and what its optimizer imports."""
    text = Path(path).read_text("utf-8")
    names = []
    for part in ast.parse(text).body:
        if isinstance(part, ast.Import):
            names += [alias.name for alias in part.names]
        elif isinstance(part, ast.ImportFrom) and part.module:
            names += [part.module]
    # The first optimizer of a process imports it.
    return names + ["torch._dynamo"] * ("torch.optim" in text)


def run(path: str, *arguments: str) -> None:
    """Run the script, as a rank of its own."""
    sys.argv = [path, *arguments]
    runpy.run_path(path, run_name="__main__")


def main(num_ranks: int, path: str, *arguments: str) -> None:
    """Run a script in all ranks, and fail if one of them fails."""
    config = LaunchConfig(
        min_nodes=1,
        max_nodes=1,
        nproc_per_node=num_ranks,
        rdzv_backend="c10d",
        rdzv_endpoint="localhost:0",
        start_method="forkserver",
        max_restarts=0,
    )
    multiprocessing.set_forkserver_preload(["torch.distributed.launcher.api", *imports(path)])
    elastic_launch(config, run)(path, *arguments)


if __name__ == "__main__":
    main(int(sys.argv[1]), *sys.argv[2:])
