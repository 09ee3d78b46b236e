"""``xloader advise``: which chunks would suit samples better."""

from __future__ import annotations

from typing import Any

import click

from xloader.cli.cluster_client import cluster_client, takes_scheduler
from xloader.cli.endings import plain_endings
from xloader.cli.json_output import print_result
from xloader.cli.loader_options import takes_loader_options
from xloader.cli.sample_description import SampleCommand, SampleDescription, takes_samples
from xloader.errors import OptionError


@click.command(cls=SampleCommand, short_help="Find chunks that suit the training.")
@takes_samples
@takes_loader_options()
@click.option(
    "--measure",
    is_flag=True,
    help="Read up to four chunks, and measure how fast they decode and how small they become.",
)
@takes_scheduler
@click.option("--json", "is_json", is_flag=True, help="Print JSON.")
def advise(
    description: SampleDescription,
    loader_options: dict[str, Any],
    measure: bool,
    scheduler: str | None,
    is_json: bool,
) -> None:
    """Compare the chunks of STORE with better ones, for samples and a loader.

    No value is read, unless --measure is given.

    Pass the samples and the options that the training will have.

    \b
    Examples:
      xloader advise era5.zarr --window time=1 --batch-size 32
      xloader advise era5.zarr --window time=6 --stride time=1 --world-size 4 --json

    Exit codes: 0 done, 2 an error, 130 interrupted.
    """
    with plain_endings("Nothing was written."):
        if scheduler is not None and not measure:
            raise OptionError(
                "a cluster only serves to measure", remedy="add --measure, or leave --scheduler out"
            )
        with cluster_client(scheduler) as cluster_options:
            advice = description.open_windowed().advise(
                measure=measure, **loader_options, **cluster_options
            )
        print_result(advice, is_json=is_json)
