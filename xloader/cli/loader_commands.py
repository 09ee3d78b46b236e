"""``xloader explain``, ``bench`` and ``advise``: a loader's plan, its speed, and better chunks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from xloader.cli.cluster_client import cluster_client, takes_scheduler
from xloader.cli.endings import end_incomplete, plain_endings, print_result, say
from xloader.cli.option_texts import option, split_names, takes_json
from xloader.cli.sample_description import (
    SampleCommand,
    SampleDescription,
    takes_loader_options,
    takes_samples,
)
from xloader.core.nbytes import show_nbytes
from xloader.errors import OptionError
from xloader.show.pages import write_page
from xloader.sources.stores.redaction import safe_name
from xloader.sources.stores.write_places import writing


@click.command(cls=SampleCommand, short_help="Predict what an epoch reads and needs.")
@takes_samples
@takes_loader_options(has_order=True)
@option(
    "--compare",
    "SIZE,SIZE,...",
    "Plan for each of these memories, and show the plans beside each other.",
)
@option(
    "--html page",
    "FILE",
    "Also write a page with the samples, the plan and drawings. A file there is replaced.",
    type=click.Path(dir_okay=False),
)
@takes_json
def explain(
    description: SampleDescription,
    loader_options: dict[str, Any],
    compare: str | None,
    page: str | None,
    is_json: bool,
) -> None:
    """Predict reads, mixing and memory of an epoch over samples of STORE. No value is read.

    Pass the samples and the options that the training will have.

    \b
    Examples:
      xloader explain era5.zarr --window time=3 --stride 1 --batch-size 32 --memory 2GiB
      xloader explain era5.zarr --window time=6 --no-shuffle --json
      xloader explain era5.zarr --window time=6 --html plan.html
      xloader explain era5.zarr --window time=6 --compare 64MiB,256MiB,1GiB

    Exit codes: 0 done, 1 no memory of --compare is large enough, 2 an error, 130 interrupted.
    """
    # The kind of arrays changes no figure, and NumPy's are there without PyTorch.
    options = {**loader_options, "output": "numpy"}
    samples = description.open_windowed()
    compared = None if compare is None else _compare(samples, compare, options)
    shown = samples.explain(**options) if compared is None else compared
    # First, because after an error nothing is done.
    if page is not None:
        with writing(Path(page)):
            write_page(page, f"An epoch of {safe_name(description.store)}", samples, shown)
        # Standard output holds JSON alone, if that is asked for.
        say(f"Written to {page}.", err=True)
    print_result(shown, is_json=is_json)
    if compared is not None and not compared.front:
        needs = [plan.minimum_nbytes for plan in compared.plans if plan.minimum_nbytes]
        least = f" The smallest that would do is {show_nbytes(min(needs))}." if needs else ""
        end_incomplete(f"None of these memories is large enough for a plan.{least}")


def _compare(samples: Any, compare: str, options: dict[str, Any]) -> Any:
    """The plans for several memories; with ``--max-amplification``, for that bound alone."""
    memories = split_names(compare)
    if "memory" in options or not memories:
        raise OptionError(
            "the memories to plan for are not clear",
            given=f"--compare {compare!r}" + " and --memory" * ("memory" in options),
            remedy="write --memory for one plan, or for several --compare 64MiB,256MiB,1GiB",
        )
    bound = click.get_current_context().params["max_amplification"]
    bounds = {} if bound is None else {"max_amplification": bound}
    return samples.compare_plans(memory=list(memories), **bounds, **options)


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
@option(
    "--workers",
    "N",
    "Worker processes of each DataLoader. Default: the number of cores.",
    type=click.IntRange(min=0),
)
@takes_json
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

    comparison = compare_loaders(
        description.open_windowed(),
        PlainOpener(description.store, description.group, description.storage_options),
        seconds=seconds,
        num_workers=usable_cores() if workers is None else workers,
        loader_options=loader_options,
    )
    print_result(comparison, is_json=is_json)


@click.command(cls=SampleCommand, short_help="Find chunks that suit the training.")
@takes_samples
@takes_loader_options()
@click.option(
    "--measure",
    is_flag=True,
    help="Read up to four chunks, and measure how fast they decode and how small they become.",
)
@takes_scheduler
@takes_json
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
