"""``xloader bench``: the speed of xloader beside other loaders, on the user's own data."""

from __future__ import annotations

from typing import Any

import click

from xloader.cli.endings import plain_endings
from xloader.cli.json_output import print_result
from xloader.cli.loader_options import takes_loader_options
from xloader.cli.sample_description import SampleCommand, SampleDescription, takes_samples


@click.command(cls=SampleCommand, short_help="Compare loaders on your data.")
@takes_samples
@takes_loader_options(has_order=True)
@click.option(
    "--seconds",
    type=click.FloatRange(min=0, min_open=True),
    default=10.0,
    show_default=True,
    help="Time for each loader, in three turns.",
)
@click.option(
    "--workers",
    type=click.IntRange(min=0),
    metavar="N",
    help="Worker processes of each DataLoader. Default: the number of cores.",
)
@click.option("--json", "is_json", is_flag=True, help="Print JSON.")
def bench(
    description: SampleDescription,
    loader_options: dict[str, Any],
    seconds: float,
    workers: int | None,
    is_json: bool,
) -> None:
    """Time xloader, a plain PyTorch DataLoader and xbatcher over the same samples of STORE.

    The plain one reads each sample by isel. Each loader takes its turn, alone, and there is no
    model. What is not installed is left out.

    \b
    Examples:
      xloader bench era5.zarr --window time=3 --stride 1 --batch-size 32
      xloader bench era5.zarr --window time=3 --seconds 30 --workers 4 --json

    Exit codes: 0 done, 2 an error, 130 interrupted.
    """
    # These modules need xbatcher and PyTorch, where these are installed, and --help does not.
    from xloader.bench.comparison import compare_loaders
    from xloader.bench.plain_samples import PlainOpener
    from xloader.core.cores import usable_cores

    with plain_endings():
        comparison = compare_loaders(
            description.open_windowed(),
            PlainOpener(description.store, description.group, description.storage_options),
            seconds=seconds,
            num_workers=usable_cores() if workers is None else workers,
            loader_options=loader_options,
        )
        print_result(comparison, is_json=is_json)
