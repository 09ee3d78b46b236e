"""``xloader explain``: the plan of a training epoch and its cost."""

from __future__ import annotations

from typing import Any

import click

from xloader.cli.endings import plain_endings
from xloader.cli.json_output import print_json
from xloader.cli.loader_options import takes_loader_options
from xloader.cli.sample_description import SampleCommand, SampleDescription, takes_samples


@click.command(cls=SampleCommand, short_help="Predict what an epoch reads and needs.")
@takes_samples
@takes_loader_options(has_order=True)
@click.option("--json", "is_json", is_flag=True, help="Print JSON.")
def explain(description: SampleDescription, loader_options: dict[str, Any], is_json: bool) -> None:
    """Predict reads, mixing and memory of an epoch over samples of STORE. No value is read.

    Pass the samples and the options that the training will have.

    \b
    Examples:
      xloader explain era5.zarr --window time=3 --stride 1 --batch-size 32 --memory 2GiB
      xloader explain era5.zarr --window time=6 --no-shuffle --json

    Exit codes: 0 done, 2 an error, 130 interrupted.
    """
    with plain_endings():
        # The kind of arrays changes no figure, and NumPy's are there without PyTorch.
        explanation = description.open().explain(output="numpy", **loader_options)
        if is_json:
            print_json(explanation)
        else:
            click.echo(str(explanation))
