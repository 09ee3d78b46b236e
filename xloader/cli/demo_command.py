"""``xloader demo``: train a small model from a chunked store."""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

import click

from xloader.cli.endings import plain_endings, print_json
from xloader.cli.option_texts import split_names
from xloader.core.messages import require_libraries

_DEMO_LIBRARIES = ("torch", "tqdm", "matplotlib")
_COUNT = click.IntRange(min=1)
_SECONDS = click.FloatRange(min=0, min_open=True)


def _setting(
    flag: str, kind: click.ParamType[Any], default: float, text: str
) -> Callable[..., Any]:
    """An option whose help shows its default."""
    return click.option(flag, type=kind, default=default, show_default=True, help=text)


@click.command(short_help="Train a small forecast model, in a few minutes.")
@click.option(
    "--store",
    metavar="PATH",
    help="A Zarr store or netCDF file of your own. Without it the demo makes a store, once.",
)
@click.option(
    "--variables",
    metavar="A,B",
    callback=lambda _context, _option, value: split_names(value),
    help="Variables to forecast. Default: every float variable that is a map over time.",
)
@click.option("--time-dim", default="time", show_default=True, help="The dimension of time.")
@_setting("--lead", _COUNT, 6, "Forecast this many steps ahead.")
@click.option(
    "--memory",
    metavar="SIZE",
    help="The loader's memory. Default: 128MiB for the demo's store, 1GiB for yours.",
)
@_setting("--batch-size", _COUNT, 16, "Samples.")
@_setting("--steps", _COUNT, 180, "Train on this many batches.")
@_setting("--seconds", _SECONDS, 300.0, "Stop training after this time, even if steps are left.")
@_setting("--plain-seconds", _SECONDS, 10.0, "Time a plain torch dataset for this long.")
@click.option("--seed", type=click.IntRange(min=0), default=0, show_default=True)
@click.option(
    "--picture",
    type=click.Path(dir_okay=False, path_type=Path),
    default=Path("xloader-demo.png"),
    show_default=True,
    help="Where to write the maps.",
)
@click.option(
    "--cache",
    metavar="DIR",
    type=click.Path(file_okay=False, path_type=Path),
    help="Where the demo's store is kept. Default: the user's cache folder.",
)
@click.option("--json", "is_json", is_flag=True, help="Print JSON at the end, and no text.")
def demo(*, is_json: bool, **fields: Any) -> None:
    """Train a small forecast model from a chunked store, in a few minutes.

    Prints the plan, the errors of the forecast, of persistence and of climatology, what was read
    and how fast, and the speed of a plain torch dataset. Writes a picture of one forecast.

    \b
    Examples:
      xloader demo
      xloader demo --steps 40 --plain-seconds 5
      xloader demo --store sst.mnmean.nc --lead 1 --json

    Exit codes: 0 done, 2 an error, 130 interrupted.
    """
    with plain_endings():
        require_libraries(_DEMO_LIBRARIES)
        # These modules import torch, which is slow and which --help does not need.
        from xloader.demo.run import DemoOptions, run_demo

        # Each option of the command has the name of a field.
        options = DemoOptions(**fields)
        if not is_json:
            run_demo(options)
            return
        # The text of the run goes where progress goes, and standard output holds JSON alone.
        with redirect_stdout(sys.stderr):
            result = run_demo(options)
        print_json(result)
