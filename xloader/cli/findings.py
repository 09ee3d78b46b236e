"""Findings of a check: a subject, whether it is well, what was found, and what to do."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

from xloader.errors import printable

Level = Literal["ok", "note", "problem"]
"""Nothing to do; something to know; something is broken."""


@dataclass(frozen=True)
class Finding:
    """One result of a check.

    Parameters
    ----------
    subject : str
        The thing that was checked, in few words.
    level : {"ok", "note", "problem"}
        Whether all is well, the user should know something, or something is broken.
    found : str
        The result in words.
    remedy : str
        What to do; empty if there is nothing to do.
    value : int, float or str, optional
        The result as one number or word, for programs.
    """

    subject: str
    level: Level
    found: str
    remedy: str = ""
    value: float | str | None = None

    def to_dict(self) -> dict[str, Any]:
        """The attributes by name."""
        return asdict(self)


def problems_among(findings: Iterable[Finding]) -> list[Finding]:
    """The findings that say that something is broken."""
    return [finding for finding in findings if finding.level == "problem"]


def show_findings(findings: Sequence[Finding]) -> str:
    """Return findings as lines of text: subject, level and result, and below it the remedy."""
    width = max((len(finding.subject) for finding in findings), default=0)
    lines = []
    for finding in findings:
        lines.append(f"{finding.subject:<{width}}   {finding.level:<7}  {finding.found}".rstrip())
        if finding.remedy:
            lines.append(f"{'':<{width}}            -> {finding.remedy}")
    return printable("\n".join(lines))
