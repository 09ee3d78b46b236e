"""``xloader demo``: train a small model from a chunked store."""

from __future__ import annotations

import sys
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

import click

from xloader.cli.endings import print_json
from xloader.cli.option_texts import option, split_names, takes_json
from xloader.core.messages import require_libraries

_DEMO_LIBRARIES = ("torch", "tqdm", "matplotlib")
_COUNT = click.IntRange(min=1)
_SECONDS = click.FloatRange(min=0, min_open=True)


@click.command(short_help="Train a small forecast model, in a few minutes.")
@option(
    "--store",
    "PATH",
    "A Zarr store or netCDF file of your own. Without it the demo makes a store, once.",
)
@option(
    "--variables",
    "A,B",
    "Variables to forecast. Default: every float variable that is a map over time.",
    split_names,
)
@option("--time-dim", "DIM", "The dimension of time. Default: time.")
@option("--lead", "N", "Forecast this many steps ahead. Default: 6.", type=_COUNT)
@option(
    "--memory",
    "SIZE",
    "The loader's memory. Default: 128MiB for the demo's store, 1GiB for yours.",
)
@option("--batch-size", "N", "Samples. Default: 16.", type=_COUNT)
@option("--steps", "N", "Train on this many batches. Default: 180.", type=_COUNT)
@option("--seconds", "S", "Stop training after this time. Default: 300.", type=_SECONDS)
@option("--seed", "N", "Default: 0.", type=click.IntRange(min=0))
@option(
    "--picture",
    "FILE",
    "Where to write the maps. Default: xloader-demo.png.",
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
    """Train a small forecast model from a chunked store, in a few minutes.

    Prints the plan, what was read and how fast, and the errors of the forecast, of persistence and
    of climatology. Writes a picture of one forecast.

    \b
    Examples:
      xloader demo
      xloader demo --steps 40 --memory 64MiB
      xloader demo --store sst.mnmean.nc --lead 1 --json

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
