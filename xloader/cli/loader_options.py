"""The options of a loader that decide its plan, for commands that predict or try a training."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import click

_LEAST_ONE = click.IntRange(min=1)
_OPTIONS: tuple[tuple[str, dict[str, Any]], ...] = (
    (
        "--batch-size",
        {
            "type": _LEAST_ONE,
            "metavar": "N",
            "help": "Samples of a batch on each rank. Default: 32.",
        },
    ),
    ("--world-size", {"type": _LEAST_ONE, "metavar": "N", "help": "Number of ranks. Default: 1."}),
    ("--lanes", {"type": _LEAST_ONE, "metavar": "N", "help": "Independent parts of the order."}),
    (
        "--prefetch",
        {"type": click.IntRange(min=0), "metavar": "N", "help": "Batches made ahead. Default: 2."},
    ),
    (
        "--max-amplification",
        {
            "type": float,
            "metavar": "X",
            "help": "How often a chunk may be read on average. Default: 1.05.",
        },
    ),
)


def takes_loader_options(
    memory_flag: str = "--memory",
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Decorate a command with options of a loader; the command takes them as ``loader_options``.

    Parameters
    ----------
    memory_flag : str
        The option for the loader's memory; another name where the command has memory of its own.

    Returns
    -------
    callable
        The decorator. ``loader_options`` holds only what was given.
    """
    memory = (memory_flag, {"metavar": "SIZE", "help": "The loader's memory. Default: 2GiB."})

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        names = {
            flag.removeprefix("--").replace("-", "_"): flag.removeprefix("--").replace("-", "_")
            for flag, _ in _OPTIONS
        }
        names[memory_flag.removeprefix("--").replace("-", "_")] = "memory"

        @functools.wraps(command)
        def with_options(**given: Any) -> None:
            taken = {word: given.pop(name) for name, word in names.items()}
            options = {word: value for word, value in taken.items() if value is not None}
            if "world_size" in options:
                # Plans are alike on all ranks, so any one will do.
                options["rank"] = 0
            command(loader_options=options, **given)

        for flag, settings in reversed((*_OPTIONS, memory)):
            with_options = click.option(flag, **settings)(with_options)
        return with_options

    return decorate
