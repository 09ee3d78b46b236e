"""The options of a loader that decide its plan, for commands that predict or try a training."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import click

from xloader.core.options import PlanRules
from xloader.core.ranks import World

_Option = tuple[str, dict[str, Any]]
"""The flag of an option, and the settings of `click.option`."""


def _option(flag: str, text: str, **settings: Any) -> _Option:
    return flag, {"help": text, **settings}


def _number(flag: str, least: int, text: str) -> _Option:
    return _option(flag, text, type=click.IntRange(min=least), metavar="N")


_OPTIONS: tuple[_Option, ...] = (
    _number("--batch-size", 1, "Samples of a batch on each rank. Default: 32."),
    _number("--world-size", 1, "Number of ranks. Default: 1."),
    _number("--lanes", 1, "Independent parts of the order."),
    _number("--prefetch", 0, "Batches made ahead. Default: 2."),
    _option(
        "--max-amplification",
        "How often a chunk may be read on average. Default: 1.05.",
        type=float,
        metavar="X",
    ),
)
_ORDER_OPTIONS: tuple[_Option, ...] = (
    _option(
        "--shuffle/--no-shuffle",
        "Whether samples come in random order. Default: they do.",
        default=None,
    ),
    _option("--seed", "Seed of the order. Default: 0.", type=int, metavar="N"),
    _option(
        "--drop-last/--keep-last",
        "Whether a last batch that is not full is left out.",
        default=None,
    ),
    _number("--spread", 0, "Tiles in memory beside the newest one. Default: as many as fit."),
    _number("--processes", 0, "Worker processes. Default: 0."),
    _number("--threads", 1, "Default: the number of cores."),
)
"""Options for commands that plan or run one loader just as a training would."""


_RULES = tuple(PlanRules.__dataclass_fields__)


def takes_loader_options(
    memory_flag: str = "--memory", *, has_order: bool = False
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Decorate a command with options of a loader; the command takes them as ``loader_options``."""
    memory = (memory_flag, {"metavar": "SIZE", "help": "The loader's memory. Default: 2GiB."})

    every = (*_OPTIONS, *(_ORDER_OPTIONS if has_order else ()), memory)

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        names = {_word(flag): _word(flag) for flag, _ in every} | {_word(memory_flag): "memory"}

        @functools.wraps(command)
        def with_options(**given: Any) -> None:
            taken = {word: given.pop(name) for name, word in names.items()}
            options = {word: value for word, value in taken.items() if value is not None}
            rules = {word: options.pop(word) for word in _RULES if word in options}
            if rules:
                options["plan"] = PlanRules(**rules)
            if "world_size" in options:
                # Plans are alike on all ranks, so any one will do.
                options["world"] = World(0, options.pop("world_size"))
            command(loader_options=options, **given)

        for flag, settings in reversed(every):
            with_options = click.option(flag, **settings)(with_options)
        return with_options

    return decorate


def _word(flag: str) -> str:
    """The name of an option as a word of Python; of ``--shuffle/--no-shuffle`` the first."""
    return flag.partition("/")[0].removeprefix("--").replace("-", "_")
