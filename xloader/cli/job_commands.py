"""``xloader stats``, ``merge`` and ``materialize``: jobs over the part that samples cover."""

from __future__ import annotations

from collections.abc import Hashable
from functools import partial
from pathlib import Path
from typing import Any, Final

import click
import numpy as np
import xarray as xr

import xloader
from xloader.cli import option_texts
from xloader.cli.cluster_client import cluster_client, takes_scheduler
from xloader.cli.endings import end_incomplete, plain_endings, print_json, say
from xloader.cli.option_texts import option, takes_json
from xloader.cli.sample_description import (
    Decorator,
    SampleCommand,
    SampleDescription,
    decorated,
    takes_loader_options,
    takes_samples,
)
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
    """The duration as --leads takes it, in the largest unit of which it is a whole number."""
    for unit in ("D", "h", "m", "s"):
        if duration % np.timedelta64(1, unit) == np.timedelta64(0):
            return f"{duration // np.timedelta64(1, unit)}{unit}"
    return str(duration)


def _number(name: str, value: float) -> str:
    if name == "count" and np.isfinite(value):
        return f"{int(value):,}"
    return f"{value:.6g}"


def _read_numbers(text: str | None) -> tuple[Any, ...]:
    return tuple(map(option_texts.read_number, option_texts.split_names(text)))


def _read_quantiles(text: str | None) -> tuple[float, ...]:
    quantiles = _read_numbers(text)
    if any(isinstance(quantile, str) for quantile in quantiles):
        raise option_texts.unreadable("--quantiles", text)
    return quantiles


def _read_sizes(option: str, texts: tuple[str, ...]) -> Any:
    return option_texts.read_pairs(option, texts, types=int) or None


def _takes_job_options(part: str, overwrite: str) -> Decorator:
    """Decorate a command with the options of a job over a whole archive."""
    options = (
        option("--part", "I/N", part, option_texts.read_part),
        option("--memory", "SIZE", "For the job.", default="2GiB", show_default=True),
        option("--threads", "N", "Default: the number of cores.", type=int),
        takes_scheduler,
        click.option("--overwrite", is_flag=True, help=overwrite),
    )
    return lambda command: decorated(command, options)


@click.command(cls=SampleCommand, short_help="Compute statistics of what samples cover.")
@takes_samples
@option("--out path", "PATH", "Write the result to PATH: stats.nc or stats.zarr.")
@option(
    "--dim",
    "A,B",
    "Dimensions to reduce, or all; time gives statistics of each cell. Default: those that do not "
    "become channels of the samples.",
    lambda text: ... if text == "all" else option_texts.split_names(text) or None,
)
@option("--by", "CLOCK", "By month, dayofyear, season or hour.")
@option(
    "--quantiles",
    "Q,Q",
    "Quantiles from 0 to 1: 0.01,0.99.",
    _read_quantiles,
)
@option(
    "--leads",
    "LEAD,LEAD",
    "Of differences along time instead of values: 6h,24h. 0 is the values.",
    _read_numbers,
)
@option("--weights", "WEIGHTS", "area weights cells by the cosine of latitude.")
@_takes_job_options(
    "Only one of N parts, from 0/N. xloader merge joins them.", "Replace PATH and its parts."
)
@takes_json
def stats(
    description: SampleDescription,
    path: str | None,
    part: tuple[int, int] | None,
    scheduler: str | None,
    is_json: bool,
    **options: Any,
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
    how_to_go_on = f"What is done lies in {path}.parts; run the same command again to go on."
    if path is None:
        how_to_go_on = "Nothing was written; pass --out, and a job that is killed can go on."
    if part is not None and path is None:
        raise OptionError(
            "a part of statistics has to be written",
            remedy="pass --out stats.nc to all parts, then run: xloader merge stats.nc",
        )
    with plain_endings(how_to_go_on), cluster_client(scheduler) as cluster_options:
        samples = description.open()
        compute = samples.stats if description.has_windows else partial(xloader.stats, samples)
        result: Any = compute(
            path=None if path is None else Path(path), part=part, **options, **cluster_options
        )
    if part is None:
        show_stats(result, path, is_json=is_json)
    elif is_json:
        print_json({"path": path, "part": part})
    else:
        number, count = part
        say(
            f"Part {number} of {count} (0 to {count - 1}) is done. "
            f"When all are done, run: xloader merge {path}"
        )


@click.command(short_help="Merge what several processes have written.")
@click.argument("target", type=click.Path(path_type=Path))
@option("--memory", "SIZE", "For a mosaic.", default="256MiB", show_default=True)
@click.option("--overwrite", is_flag=True, help="Replace something else that lies at TARGET.")
@takes_json
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


def _open_stats(text: str | None) -> xr.Dataset | None:
    if text is None:
        return None
    path = Path(text)
    if not path.exists():
        raise SourceNotFoundError(
            "there are no statistics at this path",
            given=f"--stats {path}",
            remedy=f"write them first: xloader stats STORE --out {path}",
        )
    engine = "zarr" if path.is_dir() else None
    with xr.open_dataset(path, engine=engine) as stats:
        return stats.load()


@click.command(cls=SampleCommand, short_help="Write a store with chunks that suit it.")
@takes_samples
@click.argument("target")
@option(
    "--chunks",
    "DIM=...",
    "Chunks: time=24,lat=90. Default: those that xloader advise proposes first.",
    partial(_read_sizes, "--chunks"),
    multiple=True,
)
@option(
    "--shards",
    "DIM=...",
    "Shards of many chunks each.",
    partial(_read_sizes, "--shards"),
    multiple=True,
)
@option("--dtype", "DTYPE", "Cast to this dtype, such as float32.")
@option(
    "--pack",
    "NAME=INT",
    "Pack to integers: t2m=int16, or t2m=int16,0.01 with the largest error allowed.",
    option_texts.read_packing,
    multiple=True,
)
@option(
    "--stats",
    "PATH",
    "Statistics of these samples, with the bounds of what is packed. Without it, these are "
    "read first.",
    _open_stats,
)
@option("--compressor", "NAME", "zstd (the default) or lz4.")
@option(
    "--target-option storage_options",
    "NAME=VALUE",
    "Option of the file system of TARGET, such as profile=mine.",
    partial(option_texts.read_storage, "--target-option"),
    multiple=True,
)
@_takes_job_options("Write only one of N parts, from 0/N.", "Replace what lies at TARGET.")
@click.option("--verify", is_flag=True, help="Read all objects back at the end.")
@click.option("--dry-run", is_flag=True, help="Say what would be read and written, and stop.")
@takes_loader_options("loader_memory")
@takes_json
def materialize(
    description: SampleDescription,
    target: str,
    scheduler: str | None,
    loader_options: dict[str, Any],
    is_json: bool,
    **options: Any,
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
    options = {name: value for name, value in options.items() if value is not None}
    if loader_options and "chunks" in options:
        raise OptionError(
            "options of a loader only help to choose chunks",
            given=f"--chunks, and {', '.join(loader_options)} of the loader",
            remedy="leave one of them out",
        )
    with plain_endings(f"What is done lies in {target}; run the same command again to go on."):
        samples = description.open()
        if loader_options:
            options["advice"] = samples.advise(**loader_options)
        with cluster_client(scheduler) as cluster_options:
            summary = samples.materialize(target, **options, **cluster_options)
    if is_json:
        print_json({"target": target, "summary": summary})
    else:
        say(str(summary))
    if not (summary.is_complete or summary.is_plan or "part" in options):
        end_incomplete(f"{target} is not complete: run the same command again.")
