"""The findings of all checks of a machine and its libraries."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from xloader.cli import library_findings, machine_findings
from xloader.cli.findings import Finding, problems_among, show_findings
from xloader.core.machine_limits import read_cgroup_limits


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
            "findings": [asdict(finding) for finding in self.findings],
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
            library_findings.find_xloader(library_findings.installed_release("xloader")),
            machine_findings.find_system(),
            machine_findings.find_cores(limits),
            machine_findings.find_memory(limits),
            *((shared,) if shared is not None else ()),
            library_findings.find_compiled(),
            library_findings.find_codecs(),
            library_findings.find_gzip(),
            library_findings.find_direct_reads(),
            library_findings.find_fork_safety(),
            *machine_findings.find_torch(),
            *library_findings.find_releases(),
        )
    )
