"""The command line of xloader.

``xloader demo`` trains a small model; ``xloader merge`` merges predictions into a store.
"""

from __future__ import annotations

import sys
from pathlib import Path

import click

from xloader.core.libraries import require_libraries
from xloader.errors import XloaderError

_DEMO_LIBRARIES = ("torch", "tqdm", "matplotlib")


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="xloader")
def main() -> None:
    """Plan shuffled epochs over chunked arrays, and run them."""


def _split_names(
    _context: click.Context, _option: click.Parameter, value: str | None
) -> tuple[str, ...]:
    """Split the value ``a,b`` of an option into the names ``a`` and ``b``."""
    return tuple(name.strip() for name in (value or "").split(",") if name.strip())


@main.command()
@click.option(
    "--store",
    metavar="PATH",
    help="A Zarr store or netCDF file of your own. Without it the demo makes a store, once.",
)
@click.option(
    "--variables",
    metavar="A,B",
    callback=_split_names,
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
) -> None:
    """Train a small forecast model from a chunked store, in a few minutes.

    Prints the plan, the errors of the forecast, of persistence and of climatology, what was read
    and how fast, and the speed of a plain torch dataset. Writes a picture of one forecast.
    """
    try:
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
        run_demo(options)
    except XloaderError as error:
        click.echo(f"Error: {error}", err=True)
        sys.exit(2)


@main.command()
@click.argument("target", type=click.Path(path_type=Path))
@click.option(
    "--memory", metavar="SIZE", default="256MiB", show_default=True, help="Memory for merging."
)
@click.option("--overwrite", is_flag=True, help="Replace something else that lies at TARGET.")
def merge(target: Path, memory: str, overwrite: bool) -> None:
    """Merge the predictions that samples.mosaic(TARGET) has gathered into one Zarr store.

    Exit codes: 0 if every sample has a prediction, 1 if the store was written but samples are
    missing, 2 for an error.
    """
    try:
        # Importing it takes a second, which --help does not need.
        from xloader.samples.partial_results import merge as merge_target

        summary = merge_target(target, memory=memory, overwrite=overwrite)
    except XloaderError as error:
        click.echo(f"Error: {error}", err=True)
        sys.exit(2)
    click.echo(f"{target}: {summary}")
    if not summary.is_complete:
        missing = summary.num_ids - summary.num_windows
        click.echo(f"{missing:,} samples are missing; their parts are kept, to go on with.")
        sys.exit(1)
