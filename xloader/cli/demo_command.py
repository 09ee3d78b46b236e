"""``xloader demo``: one small training, fed from a chunked store in three ways."""

from __future__ import annotations

import sys
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

import click

from xloader.cli.endings import print_json
from xloader.cli.option_texts import option, takes_json
from xloader.core.messages import require_libraries

_DEMO_LIBRARIES = ("torch", "tqdm", "matplotlib")


@click.command(short_help="One small training, fed in three ways, in three minutes.")
@option(
    "--seconds",
    "S",
    "Train so long in each way. Default: 40.",
    type=click.FloatRange(min=0, min_open=True),
)
@option(
    "--picture",
    "FILE",
    "Where to write the curves. Default: xloader-demo.png.",
    type=click.Path(dir_okay=False, path_type=Path),
)
@option(
    "--cache",
    "DIR",
    "Where the demo's store is kept. Default: the user's cache folder.",
    type=click.Path(file_okay=False, path_type=Path),
)
@takes_json
def demo(*, is_json: bool, **fields: Any) -> None:
    """Train a small forecast model from a chunked store, fed in three ways, in three minutes.

    The ways: a plain PyTorch dataset in a full shuffle, the order of the store, and xloader. Prints
    what each reads and how fast it learns. Writes a picture of the losses against time.

    \b
    Examples:
      xloader demo
      xloader demo --seconds 20 --json

    Exit codes: 0 done, 2 an error, 130 interrupted.
    """
    require_libraries(_DEMO_LIBRARIES)
    # These modules import torch, which is slow and which --help does not need.
    from xloader.demo.run import run_demo

    # Each option of the command is a parameter of the function.
    given = {name: value for name, value in fields.items() if value is not None}
    if not is_json:
        run_demo(**given)
        return
    # The text of the run goes where progress goes, and standard output holds JSON alone.
    with redirect_stdout(sys.stderr):
        result = run_demo(**given)
    print_json(result)
