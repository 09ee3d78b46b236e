"""``xloader stats``, ``merge`` and ``materialize``: jobs over the part that samples cover."""

from __future__ import annotations

from collections.abc import Hashable
from pathlib import Path
from typing import Any, Final

import click
import numpy as np
import xarray as xr

import xloader
from xloader.cli import option_texts
from xloader.cli.cluster_client import cluster_client, takes_scheduler
from xloader.cli.endings import end_incomplete, plain_endings, print_json, say
from xloader.cli.loader_options import takes_loader_options
from xloader.cli.sample_description import SampleCommand, SampleDescription, takes_samples
from xloader.core.messages import show_count
from xloader.errors import OptionError, SourceNotFoundError
from xloader.samples.dataset_stats import merge as merge_target
from xloader.show.cards import align_columns

_STAT: Final = "stat"
_MOST_NUMBERS: Final = 1_000
"""Most numbers that are printed if they are in a file as well."""


def show_stats(stats: xr.Dataset, path: str | None, *, is_json: bool) -> None:
    """Print statistics. Of many numbers that are in a file, only the sizes are printed."""
    num_numbers = sum(statistics.size for statistics in stats.data_vars.values())
    is_short = path is None or num_numbers <= _MOST_NUMBERS
    if is_json:
        print_json({"path": path, "stats": stats if is_short else None})
        return
    if is_short:
        say(make_stats_table(stats))
    else:
        sizes = ", ".join(f"{dim} {size:,}" for dim, size in stats.sizes.items())
        say(f"{num_numbers:,} numbers of {show_count(len(stats.data_vars), 'variable')}: {sizes}")
    if path is not None:
        say(f"Written to {path}.")


def make_stats_table(stats: xr.Dataset) -> str:
    """Return statistics as a table: a row for each variable, channel, month and lead."""
    dims = list(
        dict.fromkeys(
            dim for statistics in stats.values() for dim in statistics.dims if dim != _STAT
        )
    )
    names = [str(name) for name in stats[_STAT].values]
    rows = [["variable", *map(str, dims), "units", *names]]
    for name, statistics in stats.data_vars.items():
        statistics = statistics.transpose(..., _STAT)
        units = str(statistics.attrs.get("units", ""))
        for index in np.ndindex(statistics.shape[:-1]):
            at = dict(zip(statistics.dims, index, strict=False))
            labels = [_label(statistics, dim, at[dim]) if dim in at else "" for dim in dims]
            cells = [_number(*pair) for pair in zip(names, statistics.values[index], strict=True)]
            rows.append([str(name), *labels, units, *cells])
    return align_columns(rows, num_left=2 + len(dims))


def _label(values: xr.DataArray, dim: Hashable, position: int) -> str:
    if dim not in values.coords:
        return str(position)
    label: Any = values.coords[dim].values[position]
    if isinstance(label, np.timedelta64):
        return _show_duration(label)
    return f"{label:g}" if isinstance(label, np.floating) else str(label)


def _show_duration(duration: np.timedelta64) -> str:
    """The duration in the largest unit of which it is a whole number."""
    for unit in ("D", "h", "m", "s"):
        if duration % np.timedelta64(1, unit) == np.timedelta64(0):
            return f"{duration // np.timedelta64(1, unit)}{unit}"
    return str(duration)


def _number(name: str, value: float) -> str:
    if name == "count" and np.isfinite(value):
        return f"{int(value):,}"
    return f"{value:.6g}"


@click.command(cls=SampleCommand, short_help="Compute statistics of what samples cover.")
@takes_samples
@click.option("--out", metavar="PATH", help="Write the result to PATH: stats.nc or stats.zarr.")
@click.option(
    "--dim",
    metavar="A,B",
    help="Dimensions to reduce, or all; time gives statistics of each cell. Default: those that "
    "do not become channels of the samples.",
)
@click.option("--by", metavar="CLOCK", help="By month, dayofyear, season or hour.")
@click.option("--quantiles", metavar="Q,Q", help="Quantiles from 0 to 1: 0.01,0.99.")
@click.option(
    "--leads",
    metavar="LEAD,LEAD",
    help="Of differences along time instead of values: 6h,24h. 0 is the values.",
)
@click.option("--weights", metavar="WEIGHTS", help="area weights cells by the cosine of latitude.")
@click.option(
    "--part", metavar="I/N", help="Only one of N parts, from 0/N. xloader merge joins them."
)
@click.option("--memory", metavar="SIZE", default="2GiB", show_default=True, help="For the job.")
@click.option(
    "--threads", type=click.IntRange(min=1), metavar="N", help="Default: the number of cores."
)
@takes_scheduler
@click.option("--overwrite", is_flag=True, help="Replace PATH and its parts.")
@click.option("--json", "is_json", is_flag=True, help="Print JSON.")
def stats(
    description: SampleDescription,
    out: str | None,
    dim: str | None,
    by: str | None,
    quantiles: str | None,
    leads: str | None,
    weights: str | None,
    part: str | None,
    memory: str,
    threads: int | None,
    scheduler: str | None,
    overwrite: bool,
    is_json: bool,
) -> None:
    """Compute statistics of what the samples of STORE cover, each element once.

    Count, mean, standard deviation, minimum and maximum are one number for each variable, and each
    level or other channel. Without --window, everything that --sel and --isel keep counts, and
    levels are reduced, too.

    \b
    Examples:
      xloader stats era5.zarr --sel time=1979:2017 --out stats.nc
      xloader stats era5.zarr --variables t2m --by month --json

    A killed job with --out goes on where it was: run it again.

    Exit codes: 0 done, 2 an error, 130 interrupted.
    """
    how_to_go_on = f"What is done lies in {out}.parts; run the same command again to go on."
    if out is None:
        how_to_go_on = "Nothing was written; pass --out, and a job that is killed can go on."
    with plain_endings(how_to_go_on):
        number = option_texts.read_part(part)
        if number is not None and out is None:
            raise OptionError(
                "a part of statistics has to be written",
                remedy="pass --out stats.nc to all parts, then run: xloader merge stats.nc",
            )
        options: dict[str, Any] = {
            "dim": ... if dim == "all" else option_texts.split_names(dim) or None,
            "by": by,
            "quantiles": option_texts.read_numbers("--quantiles", quantiles),
            "leads": tuple(map(option_texts.read_size, option_texts.split_names(leads))),
            "weights": weights,
            "memory": memory,
            "threads": threads,
            "path": None if out is None else Path(out),
            "part": number,
            "overwrite": overwrite,
        }
        with cluster_client(scheduler) as cluster_options:
            result = _compute(description, {**options, **cluster_options})
        if number is not None:
            _show_part(number, out, is_json)
        else:
            show_stats(result, out, is_json=is_json)


def _compute(description: SampleDescription, options: dict[str, Any]) -> Any:
    samples = description.open()
    if description.has_windows:
        return samples.stats(**options)
    return xloader.stats(samples, **options)


def _show_part(part: tuple[int, int], out: str | None, is_json: bool) -> None:
    if is_json:
        print_json({"path": out, "part": list(part)})
        return
    number, count = part
    say(
        f"Part {number} of {count} (0 to {count - 1}) is done. "
        f"When all are done, run: xloader merge {out}"
    )


@click.command(short_help="Merge what several processes have written.")
@click.argument("target", type=click.Path(path_type=Path))
@click.option("--memory", metavar="SIZE", default="256MiB", show_default=True, help="For a mosaic.")
@click.option("--overwrite", is_flag=True, help="Replace something else that lies at TARGET.")
@click.option("--json", "is_json", is_flag=True, help="Print JSON.")
def merge(target: Path, memory: str, overwrite: bool, is_json: bool) -> None:
    """Merge what several processes have written for TARGET.

    TARGET is the path of a mosaic, as in samples.mosaic(TARGET), or of statistics, as in
    xloader stats STORE --out TARGET --part 0/8.

    \b
    Examples:
      xloader merge forecast.zarr
      xloader merge stats.nc --json

    Exit codes: 0 done, 1 done but samples of the mosaic are missing, 2 an error, such as missing
    parts of statistics, 130 interrupted.
    """
    with plain_endings("Nothing is lost: run the same command again."):
        merged = merge_target(target, memory=memory, overwrite=overwrite)
        if isinstance(merged, xr.Dataset):
            show_stats(merged, str(target), is_json=is_json)
            return
        if is_json:
            print_json({"path": target, "summary": merged})
        else:
            say(f"{target}: {merged}")
        if not merged.is_complete:
            missing = merged.num_ids - merged.num_windows
            end_incomplete(
                f"{show_count(missing, 'sample')} missing; their parts are kept, to go on with."
            )


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
