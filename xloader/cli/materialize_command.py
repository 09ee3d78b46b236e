"""``xloader materialize``: a store whose chunks suit the training."""

from __future__ import annotations

from typing import Any

import click

from xloader.cli import option_texts
from xloader.cli.endings import plain_endings
from xloader.cli.json_output import print_json
from xloader.cli.loader_options import takes_loader_options
from xloader.cli.sample_description import SampleCommand, SampleDescription, takes_samples
from xloader.errors import OptionError


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
@click.option("--codec", metavar="NAME", help="Compression, such as zstd or lz4.")
@click.option("--part", metavar="I/N", help="Write only one of N parts, from 0/N.")
@click.option("--memory", metavar="SIZE", default="2GiB", show_default=True, help="For the job.")
@click.option(
    "--threads", type=click.IntRange(min=1), metavar="N", help="Default: the number of cores."
)
@click.option("--overwrite", is_flag=True, help="Replace what lies at TARGET.")
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
    codec: str | None,
    part: str | None,
    memory: str,
    threads: int | None,
    overwrite: bool,
    dry_run: bool,
    loader_options: dict[str, Any],
    is_json: bool,
) -> None:
    r"""Write the variables that the samples of STORE take to a new Zarr store TARGET.

    TARGET holds the part that --sel and --isel keep, so leave these out when you open it: the same
    windows then give the same samples. Without --chunks, the options of the loader that will train
    decide on the chunks.

    \b
    Examples:
      xloader materialize era5.zarr training.zarr --window time=1 --batch-size 32
      xloader materialize era5.zarr training.zarr --window time=1 --chunks time=24,lat=90 --dry-run

    A killed job goes on where it was: run it again.

    Exit codes: 0 done, 1 done but incomplete, 2 an error, 130 interrupted.
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
            "dry_run": dry_run,
        }
        if codec is not None:
            given["codec"] = codec
        if loader_options and chunks:
            raise OptionError(
                "options of a loader only help to choose chunks",
                given=f"--chunks, and {', '.join(loader_options)} of the loader",
                remedy="leave one of them out",
            )
        samples = description.open()
        if loader_options:
            given["advice"] = samples.advise(**loader_options)
        summary = samples.materialize(target, **given)
        if is_json:
            print_json({"target": target, "summary": summary})
        else:
            click.echo(str(summary))
