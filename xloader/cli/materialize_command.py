"""``xloader materialize``: a store whose chunks suit the training."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click
import xarray as xr

from xloader.cli import option_texts
from xloader.cli.cluster_client import cluster_client, takes_scheduler
from xloader.cli.endings import end_incomplete, plain_endings, say
from xloader.cli.json_output import print_json
from xloader.cli.loader_options import takes_loader_options
from xloader.cli.sample_description import SampleCommand, SampleDescription, takes_samples
from xloader.errors import OptionError, SourceNotFoundError


@click.command(cls=SampleCommand, short_help="Write a store with chunks that suit it.")
@takes_samples
@click.argument("target")
@click.option(
    "--chunks",
    multiple=True,
    metavar="DIM=...",
    help="Chunks: time=24,lat=90. Default: those that xloader advise proposes first.",
)
@click.option("--shards", multiple=True, metavar="DIM=...", help="Shards of many chunks each.")
@click.option("--dtype", metavar="DTYPE", help="Cast to this dtype, such as float32.")
@click.option(
    "--pack",
    multiple=True,
    metavar="NAME=INT",
    help="Pack to integers: t2m=int16, or t2m=int16,0.01 with the largest error allowed.",
)
@click.option(
    "--stats",
    metavar="PATH",
    help="Statistics of these samples, with the bounds of what is packed. Without it, these are "
    "read first.",
)
@click.option("--compressor", metavar="NAME", help="zstd (the default) or lz4.")
@click.option(
    "--target-option",
    multiple=True,
    metavar="NAME=VALUE",
    help="Option of the file system of TARGET, such as profile=mine.",
)
@click.option("--part", metavar="I/N", help="Write only one of N parts, from 0/N.")
@click.option("--memory", metavar="SIZE", default="2GiB", show_default=True, help="For the job.")
@click.option(
    "--threads", type=click.IntRange(min=1), metavar="N", help="Default: the number of cores."
)
@takes_scheduler
@click.option("--overwrite", is_flag=True, help="Replace what lies at TARGET.")
@click.option("--verify", is_flag=True, help="Read all objects back at the end.")
@click.option("--dry-run", is_flag=True, help="Say what would be read and written, and stop.")
@takes_loader_options("--loader-memory")
@click.option("--json", "is_json", is_flag=True, help="Print JSON.")
def materialize(
    description: SampleDescription,
    target: str,
    chunks: tuple[str, ...],
    shards: tuple[str, ...],
    dtype: str | None,
    pack: tuple[str, ...],
    stats: str | None,
    compressor: str | None,
    target_option: tuple[str, ...],
    part: str | None,
    memory: str,
    threads: int | None,
    scheduler: str | None,
    overwrite: bool,
    verify: bool,
    dry_run: bool,
    loader_options: dict[str, Any],
    is_json: bool,
) -> None:
    """Write the variables that the samples of STORE take to a new Zarr store TARGET.

    TARGET holds the part that --sel and --isel keep, so leave these out when you open it: the same
    windows then give the same samples. Without --chunks, the options of the loader that will train
    decide on the chunks.

    \b
    Examples:
      xloader materialize era5.zarr training.zarr --window time=1 --chunks time=24,lat=90 --dry-run
      xloader materialize era5.zarr training.zarr --window time=1 --batch-size 32

    A killed job goes on where it was: run it again.

    Exit codes: 0 done, 1 objects are missing, 2 an error, 130 interrupted.
    """
    with plain_endings(f"What is done lies in {target}; run the same command again to go on."):
        given: dict[str, Any] = {
            "chunks": option_texts.read_counts("--chunks", chunks),
            "shards": option_texts.read_counts("--shards", shards),
            "dtype": dtype,
            "pack": option_texts.read_packing(pack),
            "part": option_texts.read_part(part),
            "memory": memory,
            "threads": threads,
            "overwrite": overwrite,
            "verify": verify,
            "dry_run": dry_run,
            "storage_options": option_texts.read_storage("--target-option", target_option),
        }
        if compressor is not None:
            given["compressor"] = compressor
        if stats is not None:
            given["stats"] = _open_stats(Path(stats))
        if loader_options and chunks:
            raise OptionError(
                "options of a loader only help to choose chunks",
                given=f"--chunks, and {', '.join(loader_options)} of the loader",
                remedy="leave one of them out",
            )
        samples = description.open()
        if loader_options:
            given["advice"] = samples.advise(**loader_options)
        with cluster_client(scheduler) as cluster_options:
            summary = samples.materialize(target, **given, **cluster_options)
        if is_json:
            print_json({"target": target, "summary": summary})
        else:
            say(str(summary))
        if not (summary.is_complete or summary.is_plan or part):
            end_incomplete(f"{target} is not complete: run the same command again.")


def _open_stats(path: Path) -> xr.Dataset:
    if not path.exists():
        raise SourceNotFoundError(
            "there are no statistics at this path",
            given=f"--stats {path}",
            remedy=f"write them first: xloader stats STORE --out {path}",
        )
    engine = "zarr" if path.is_dir() else None
    with xr.open_dataset(path, engine=engine) as stats:
        return stats.load()
