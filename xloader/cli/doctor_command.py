"""``xloader doctor``: what this machine and its libraries mean for xloader."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import click

from xloader.cli import library_findings, machine_findings
from xloader.cli.endings import end_incomplete, plain_endings
from xloader.cli.findings import Finding, problems_among, show_findings
from xloader.cli.json_output import print_result
from xloader.cli.library_findings import installed_release
from xloader.cli.machine_findings import find_torch
from xloader.engine.machine_limits import read_cgroup_limits


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

    with plain_endings():
        diagnosis = diagnose()
        print_result(diagnosis, is_json=is_json)
        if diagnosis.problems:
            names = ", ".join(finding.subject for finding in diagnosis.problems)
            end_incomplete(f"Broken: {names}.")


@dataclass(frozen=True)
class Diagnosis:
    """The findings of all checks of a machine and its libraries.

    Parameters
    ----------
    findings : tuple of Finding
        The findings, in the order in which they are shown.
    """

    findings: tuple[Finding, ...]

    @property
    def problems(self) -> tuple[Finding, ...]:
        """The findings that say that something is broken."""
        return tuple(problems_among(self.findings))

    def to_dict(self) -> dict[str, Any]:
        """The findings, and the number of problems and notes, in types that JSON can hold."""
        return {
            "findings": [finding.to_dict() for finding in self.findings],
            "num_problems": len(self.problems),
            "num_notes": sum(finding.level == "note" for finding in self.findings),
        }

    def __str__(self) -> str:
        return show_findings(self.findings)


def diagnose() -> Diagnosis:
    """Check this machine and the libraries of this Python. PyTorch is imported if installed.

    Returns
    -------
    Diagnosis
        One finding for each check.
    """
    limits = read_cgroup_limits()
    shared = machine_findings.find_shared_memory()
    return Diagnosis(
        (
            library_findings.find_xloader(installed_release("xloader")),
            machine_findings.find_system(),
            machine_findings.find_cores(limits),
            machine_findings.find_memory(limits),
            *((shared,) if shared is not None else ()),
            library_findings.find_compiled(),
            library_findings.find_codecs(),
            library_findings.find_gzip(),
            library_findings.find_direct_reads(),
            library_findings.find_fork_safety(),
            *find_torch(),
            *library_findings.find_releases(),
        )
    )
