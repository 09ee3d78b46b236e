"""``xloader doctor``: what this machine and its libraries mean for xloader."""

from __future__ import annotations

import click

from xloader.cli.endings import end_incomplete, plain_endings
from xloader.cli.json_output import print_result


@click.command(short_help="Check this machine and its libraries.")
@click.option("--json", "is_json", is_flag=True, help="Print JSON.")
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

    with plain_endings():
        diagnosis = diagnose()
        print_result(diagnosis, is_json=is_json)
        if diagnosis.problems:
            names = ", ".join(finding.subject for finding in diagnosis.problems)
            end_incomplete(f"Broken: {names}.")
