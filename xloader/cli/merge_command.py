"""``xloader merge``: the partial results of several processes become one."""

from __future__ import annotations

from pathlib import Path

import click
import xarray as xr

from xloader.cli.endings import end_incomplete, plain_endings, say
from xloader.cli.json_output import print_json
from xloader.cli.stats_command import show_stats
from xloader.core.messages import show_count
from xloader.samples.dataset_stats import merge as merge_target


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
