"""``xloader demo``: train a small model from a chunked store."""

from __future__ import annotations

import sys
from contextlib import redirect_stdout
from pathlib import Path

import click

from xloader.cli.endings import plain_endings
from xloader.cli.json_output import print_json
from xloader.cli.option_texts import split_names
from xloader.core.libraries import require_libraries

_DEMO_LIBRARIES = ("torch", "tqdm", "matplotlib")


def _names(_context: click.Context, _option: click.Parameter, value: str | None) -> tuple[str, ...]:
    return split_names(value)


@click.command(short_help="Train a small forecast model, in a few minutes.")
@click.option(
    "--store",
    metavar="PATH",
    help="A Zarr store or netCDF file of your own. Without it the demo makes a store, once.",
)
@click.option(
    "--variables",
    metavar="A,B",
    callback=_names,
    help="Variables to forecast. Default: every float variable that is a map over time.",
)
@click.option("--time-dim", default="time", show_default=True, help="The dimension of time.")
@click.option(
    "--lead",
    type=click.IntRange(min=1),
    default=6,
    show_default=True,
    help="Forecast this many steps ahead.",
)
@click.option(
    "--memory",
    metavar="SIZE",
    help="The loader's memory. Default: 128MiB for the demo's store, 1GiB for yours.",
)
@click.option(
    "--batch-size", type=click.IntRange(min=1), default=16, show_default=True, help="Samples."
)
@click.option(
    "--steps",
    type=click.IntRange(min=1),
    default=180,
    show_default=True,
    help="Train on this many batches.",
)
@click.option(
    "--seconds",
    type=click.FloatRange(min=0, min_open=True),
    default=300.0,
    show_default=True,
    help="Stop training after this time, even if steps are left.",
)
@click.option(
    "--plain-seconds",
    type=click.FloatRange(min=0, min_open=True),
    default=10.0,
    show_default=True,
    help="Time a plain torch dataset for this long.",
)
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
def demo(
    store: str | None,
    variables: tuple[str, ...],
    time_dim: str,
    lead: int,
    memory: str | None,
    batch_size: int,
    steps: int,
    seconds: float,
    plain_seconds: float,
    seed: int,
    picture: Path,
    cache: Path | None,
    is_json: bool,
) -> None:
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
        from xloader.demo.options import DemoOptions
        from xloader.demo.run import run_demo

        options = DemoOptions(
            store=store,
            variables=variables,
            time_dim=time_dim,
            lead=lead,
            batch_size=batch_size,
            memory=memory,
            steps=steps,
            seconds=seconds,
            plain_seconds=plain_seconds,
            seed=seed,
            picture=picture,
            cache=cache,
        )
        if not is_json:
            run_demo(options)
            return
        # The text of the run goes where progress goes, and standard output holds JSON alone.
        with redirect_stdout(sys.stderr):
            result = run_demo(options)
        print_json(result)
