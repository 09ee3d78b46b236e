"""``xloader doctor`` and ``inspect``: what a machine, its libraries and a store have and lack."""

from __future__ import annotations

from typing import Any

import click

from xloader.cli.endings import end_incomplete, print_result
from xloader.cli.option_texts import option, takes_json
from xloader.cli.sample_description import SampleCommand, SampleDescription, takes_store


@click.command(short_help="Check this machine and its libraries.")
@takes_json
def doctor(is_json: bool) -> None:
    """Check cores, memory, codecs, PyTorch and its GPUs, and the releases of libraries.

    Each line says ok, note or problem, and what to do about a note or a problem.

    \b
    Examples:
      xloader doctor
      xloader doctor --json

    Exit codes: 0 nothing is broken, 1 something is, 2 an error, 130 interrupted.
    """
    # Some checks import libraries that --help does not need.
    from xloader.cli.diagnosis import diagnose

    _show(diagnose(), is_json)


def _show(result: Any, is_json: bool) -> None:
    print_result(result, is_json=is_json)
    if result.problems:
        names = ", ".join(dict.fromkeys(problem.subject for problem in result.problems))
        end_incomplete(f"Broken: {names}.")


def _num_chunks(value: str | None) -> int | None:
    if value is None or value == "all":
        return None if value is None else 0
    if not value.isdecimal() or not int(value):
        raise click.BadParameter(
            f"{value!r} is not a number of chunks. Write --nan after STORE for all chunks, or for "
            "example --nan=10."
        )
    return int(value)


@click.command(
    "inspect", cls=SampleCommand, short_help="Show what is in a store, and what is broken."
)
@takes_store
@option(
    "--nan nan_chunks",
    "[N]",
    "Count NaN, and find chunks that cannot be read: of all chunks, or of N of each variable.",
    _num_chunks,
    is_flag=False,
    flag_value="all",
)
@click.option(
    "--on-missing",
    type=click.Choice(["warn", "fill"]),
    default="warn",
    show_default=True,
    help="fill: absent chunks are absent on purpose, and no problem.",
)
@takes_json
def inspect(
    description: SampleDescription, nan_chunks: int | None, on_missing: Any, is_json: bool
) -> None:
    """Show the variables, chunk grids and labels of STORE, and what is broken.

    Labels and sizes are read, but no values, except with --nan. What is broken is named, and the
    rest is shown.

    \b
    Examples:
      xloader inspect era5.zarr
      xloader inspect era5.zarr --variables t2m --nan=10
      xloader inspect era5.zarr --nan --json

    Exit codes: 0 nothing is broken, 1 something is, 2 an error, 130 interrupted.
    """
    # Counting needs modules that --help does not.
    from xloader.cli.store_inspection import inspect_store

    inspection = inspect_store(
        description.store,
        variables=description.variable_names,
        group=description.group,
        storage_options=description.storage_options,
        nan_chunks=nan_chunks,
        on_missing=on_missing,
    )
    _show(inspection, is_json)
