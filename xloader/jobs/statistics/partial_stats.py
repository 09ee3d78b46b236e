"""Statistics of a part of the chunks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from xloader.core.count_text import show_count
from xloader.core.merge_tree import Node
from xloader.jobs.statistics.labelled_moments import LabelledMoments
from xloader.jobs.statistics.stats_template import StatsTemplate


@dataclass(frozen=True, eq=False)
class PartialStats:
    """Statistics of a part of the chunks, as :meth:`Samples.stats` with ``part`` returns them.

    :func:`xloader.merge` makes the whole of all parts. They can be pickled and sent.

    Attributes
    ----------
    part : (int, int)
        The number of this part, from 0 on, and the number of parts.
    num_reads : int
        Number of chunks that were read for it.
    template : StatsTemplate
        The form of the whole.
    nodes : mapping
        The statistics; none if they lie in files.
    path : str
        The target beside which the files lie; empty without files.
    """

    part: tuple[int, int]
    num_reads: int
    template: StatsTemplate = field(repr=False)
    nodes: Mapping[tuple[int, int], Mapping[Node, LabelledMoments]] = field(repr=False)
    path: str = ""

    def __str__(self) -> str:
        number, count = self.part
        where = f"; its files lie beside {self.path}" if self.path else ""
        chunks = show_count(self.num_reads, "chunk")
        return f"statistics of part {number} of {count}: {chunks} read{where}"
