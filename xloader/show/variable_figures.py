"""The reads of each variable, as planned or as measured; they sum to those of an epoch exactly."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from xloader.core.footprint import Group


@dataclass(frozen=True)
class VariableFigures:
    """The reads of one variable in an epoch, of the same ranks as the figures that hold it.

    Attributes
    ----------
    num_chunks : int
        Distinct chunks that the epoch needs, as predicted; 0 for a variable that is computed.
    num_reads : int
        Chunks read and decoded.
    read_nbytes : int
        Decoded bytes of these chunks.
    read_amplification : float
        ``num_reads`` divided by ``num_chunks``; 1.00 is each once, 0 if none is needed.
    """

    num_chunks: int
    num_reads: int
    read_nbytes: int
    read_amplification: float


class GroupReads(NamedTuple):
    """The reads of one group's blocks, which are those of each of its variables."""

    num_needed: int
    num_loads: int
    num_elements: int


def count_reads(groups: Sequence[Group], reads: Sequence[GroupReads]) -> dict[str, Any]:
    """The figures of an epoch that follow from the reads of each group."""
    variables = {}
    for group, group_reads in zip(groups, reads, strict=True):
        for demand in group.demands:
            variables[demand.variable] = variable_figures(
                group_reads.num_needed * demand.num_reads_per_block,
                group_reads.num_loads * demand.num_reads_per_block,
                group_reads.num_elements * demand.unit_read_nbytes,
            )
    return sum_variables(variables)


def variable_figures(num_chunks: int, num_reads: int, read_nbytes: int) -> VariableFigures:
    """The figures of a variable, with its read amplification."""
    return VariableFigures(num_chunks, num_reads, read_nbytes, num_reads / max(num_chunks, 1))


def sum_variables(variables: Mapping[str, VariableFigures]) -> dict[str, Any]:
    """The figures of an epoch that are sums over its variables, and these; see `count_reads`."""
    num_reads = sum(figures.num_reads for figures in variables.values())
    num_chunks = sum(figures.num_chunks for figures in variables.values())
    return {
        "num_reads": num_reads,
        "read_nbytes": sum(figures.read_nbytes for figures in variables.values()),
        "read_amplification": num_reads / max(num_chunks, 1),
        "variables": variables,
    }


def scaled_reads(reads: Mapping[str, Any], scale: float) -> dict[str, Any]:
    """Estimate the figures of a long order from those of its first part; see `count_reads`."""
    if scale == 1:
        return dict(reads)
    variables = {
        name: replace(
            figures,
            num_reads=round(scale * figures.num_reads),
            read_nbytes=round(scale * figures.read_nbytes),
        )
        for name, figures in reads["variables"].items()
    }
    # Reads a chunk are those of the first part: how many chunks the rest needs is not known.
    return {**sum_variables(variables), "read_amplification": reads["read_amplification"]}


def measured_variables(
    groups: Sequence[Group],
    expected: Mapping[str, VariableFigures],
    num_reads: Mapping[str, int],
    group_nbytes: Mapping[int, int],
) -> dict[str, VariableFigures]:
    """The figures of each variable as an engine has counted them."""
    measured = {}
    for index, group in enumerate(groups):
        unit = group.unit_read_nbytes
        # The blocks of a group have the same elements of each variable, so this divides evenly.
        num_elements = group_nbytes.get(index, 0) // unit if unit else 0
        for demand in group.demands:
            name = demand.variable
            num_chunks = expected[name].num_chunks if name in expected else 0
            nbytes = num_elements * demand.unit_read_nbytes
            measured[name] = variable_figures(num_chunks, num_reads.get(name, 0), nbytes)
    return measured


def num_needed(groups: Sequence[Group], reads: Iterable[GroupReads]) -> int:
    """Number of distinct (variable, chunk) pairs that are needed."""
    return sum(
        group_reads.num_needed * group.num_reads_per_block
        for group, group_reads in zip(groups, reads, strict=True)
    )
