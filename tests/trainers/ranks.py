"""Ranks under torchrun's own agent: ``python -m tests.trainers.ranks NUM SCRIPT ARGUMENTS...``.

The agent is set up as by ``torchrun --standalone --nproc-per-node NUM``. But each rank begins as a
copy of this process, so that only this process imports the libraries, which takes seconds.
"""

from __future__ import annotations

import ast
import runpy
import sys
from importlib import import_module
from pathlib import Path

from torch.distributed.launcher.api import LaunchConfig, elastic_launch


def import_as(path: str) -> None:
    """Import what a script imports at its top, but run nothing else of it."""
    text = Path(path).read_text("utf-8")
    parsed = ast.parse(text)
    parsed.body = [part for part in parsed.body if isinstance(part, ast.Import | ast.ImportFrom)]
    exec(compile(parsed, path, "exec"), {})
    if "torch.optim" in text:
        # The first optimizer of a process imports it.
        import_module("torch._dynamo")


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
        start_method="fork",
        max_restarts=0,
    )
    import_as(path)
    elastic_launch(config, run)(path, *arguments)


if __name__ == "__main__":
    main(int(sys.argv[1]), *sys.argv[2:])
