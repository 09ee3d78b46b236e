"""Advice on chunks: today's and better ones, each with what an epoch is predicted to cost."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from xloader.core.messages import show_count
from xloader.core.nbytes import show_nbytes
from xloader.jobs.advice.read_speed import ReadSpeed, show_gb_per_s
from xloader.planning.explain import Explanation
from xloader.planning.plan_comparison import plan_costs
from xloader.show.cards import Card, CardPart, CardTable, Words
from xloader.show.json_values import to_json_value, values_by_name


@dataclass(frozen=True)
class ChunkProposal:
    """Chunks and shards of a store, and what an epoch over it is predicted to cost.

    Attributes
    ----------
    kind : str
        ``"today"``, or in what the proposal is better than the others: ``"best"`` (speed and
        mixing together), ``"mixes best"``, ``"reads least"`` or ``"fewest chunks"``.
    chunks : mapping of str to int
        Number of elements of a chunk along each dimension, which all variables with that dimension
        share. Of today's, those of the variable with most bytes; the largest, where they differ.
    shards : mapping of str to int or None
        Number of elements of a shard, the stored object, along each dimension; None if each chunk
        is an object of its own, or that is not known of today's.
    explanation : Explanation or None
        The prediction that ``samples.loader(...).explain()`` gives on such a store, without notes;
        None if the memory is too small.
    is_resident : bool
        Whether the memory holds all chunks that samples need, so that epochs after the first read
        nothing.
    problem : str
        Why there is no explanation; else empty.
    minimum_nbytes : int or None
        The least memory that is enough, in bytes, where it is too small.
    chunk_nbytes : int
        Decoded bytes of the largest chunk.
    batch_chunks : int
        Chunks that a batch of samples from all over the data touches.
    mixing_share : float or None
        Mixing as a share of a full shuffle's, counted on places that are the same for all
        proposals. ``explanation.mixing`` counts places of the chunks themselves.
    gb_per_s : float or None
        Predicted speed: bytes of batches delivered in a second, in 10^9. See `Advice.speed`.
    nbytes : int or None
        Stored bytes of the part that the samples cover; None if not known.
    num_objects : int or None
        Stored objects, such as files, of that part; None if not known.
    """

    kind: str
    chunks: Mapping[str, int]
    shards: Mapping[str, int] | None
    explanation: Explanation | None
    chunk_nbytes: int
    batch_chunks: int
    mixing_share: float | None = None
    gb_per_s: float | None = None
    nbytes: int | None = None
    num_objects: int | None = None
    is_resident: bool = False
    problem: str = ""
    minimum_nbytes: int | None = None

    @property
    def read_amplification(self) -> float | None:
        """Reads for each distinct chunk needed; None if the memory is too small."""
        return None if self.explanation is None else self.explanation.read_amplification

    @property
    def mixing(self) -> float | None:
        """Distinct places in a batch; None if the memory is too small."""
        return None if self.explanation is None else self.explanation.mixing

    @property
    def full_mixing(self) -> float | None:
        """The same of a full shuffle; None if the memory is too small."""
        return None if self.explanation is None else self.explanation.full_mixing

    @property
    def peak_nbytes(self) -> int | None:
        """The most bytes in use at a time; None if the memory is too small."""
        return None if self.explanation is None else self.explanation.peak_nbytes

    def to_dict(self) -> dict[str, Any]:
        """The figures by name, as plain values that JSON can hold."""
        values = values_by_name(self) | plan_costs(self.explanation)
        del values["explanation"]
        return {name: to_json_value(value) for name, value in values.items()}

    def in_words(self) -> str:
        """The proposal in one sentence or two."""
        begin = "Today a chunk holds" if self.kind == "today" else "With chunks of"
        begin += f" {_shown(self.chunks)} ({show_nbytes(self.chunk_nbytes)} decoded)"
        touched = f"a batch touches {show_count(self.batch_chunks, 'chunk')}"
        if self.explanation is None:
            return f"{begin}, and {touched}, but {self.problem}."
        times = f"{self.explanation.read_amplification:.2f}"
        often = "once" if times == "1.00" else f"{times} times"
        reads = f"each is read {often} in an epoch"
        if not self.explanation.num_reads:
            reads = "and nothing is read"
        elif self.is_resident:
            reads = f"each is read {often}, and then stays in memory"
        mixing = ""
        if self.mixing_share is not None:
            share = f"{self.mixing_share:.0%}"
            mixing = f", and batches draw from {share} as many places as those of a full shuffle"
        return f"{begin}, {touched}, {reads}{mixing}."

    def cells(self) -> dict[str, str]:
        """The figures as texts, by the heading of their row."""
        texts = {f"chunk {dim}": f"{size:,}" for dim, size in self.chunks.items()}
        texts["chunk, decoded"] = show_nbytes(self.chunk_nbytes)
        texts |= {f"shard {dim}": f"{size:,}" for dim, size in (self.shards or {}).items()}
        texts["chunks a batch touches"] = f"{self.batch_chunks:,}"
        explanation = self.explanation
        if explanation is None:
            need = self.minimum_nbytes
            texts["memory"] = f"needs {show_nbytes(need)}" if need else "cannot be planned"
        else:
            texts["chunks read"] = f"{explanation.num_reads:,}"
            texts["reads per chunk"] = f"{explanation.read_amplification:.3f}"
            texts["memory"] = f"{show_nbytes(explanation.peak_nbytes)} at most"
        if self.mixing_share is not None:
            texts["mixing, of a full shuffle"] = f"{self.mixing_share:.0%}"
        if self.gb_per_s is not None:
            texts["speed"] = show_gb_per_s(self.gb_per_s)
        texts["on disk"] = "not known" if self.nbytes is None else show_nbytes(self.nbytes)
        count = self.num_objects
        texts["stored objects"] = "not known" if count is None else f"{count:,}"
        return texts


@dataclass(frozen=True)
class Advice:
    """Today's chunks and better ones.

    ``print(advice)`` shows it in words and as a table.

    Attributes
    ----------
    current : ChunkProposal
        The chunks as they are today.
    proposals : tuple of ChunkProposal
        Up to three that are better, best first; none if today's are as good.
    speed : ReadSpeed
        What speeds are computed from. Unless ``measure=True`` was asked for, all of it is assumed.
    num_plans : int
        Shapes of chunks that were planned for.
    """

    current: ChunkProposal
    proposals: tuple[ChunkProposal, ...]
    speed: ReadSpeed
    num_plans: int

    @property
    def best(self) -> ChunkProposal:
        """The first proposal; today's chunks if there is none."""
        return self.proposals[0] if self.proposals else self.current

    def to_dict(self) -> dict[str, Any]:
        """The figures by name, as plain values that JSON can hold."""
        return {
            "current": self.current.to_dict(),
            "proposals": [proposal.to_dict() for proposal in self.proposals],
            "speed": "measured" if self.speed.is_measured else "assumed",
            "num_measured_reads": self.speed.num_reads,
            "num_plans": self.num_plans,
        }

    def in_words(self) -> tuple[str, ...]:
        """Sentences on today's chunks, on each proposal, and on the figures that are assumed."""
        sentences = [self.current.in_words()]
        sentences += [
            f"{number}. {proposal.kind}: {self._proposed(proposal)}"
            for number, proposal in enumerate(self.proposals, 1)
        ]
        if not self.proposals:
            sentences.append(
                f"None of {self.num_plans} other shapes is clearly better in something (mixing, "
                "bytes read, speed, number of objects) and as good in the rest. Smaller chunks may "
                "mix better and read more slowly."
            )
        return (*sentences, self._assumptions())

    def _proposed(self, proposal: ChunkProposal) -> str:
        """A proposal in words. Chunks of today's shape gain only by how they are stored."""
        today = self.current
        if proposal.chunks != today.chunks or proposal.explanation is None:
            return proposal.in_words()
        gains = []
        if proposal.gb_per_s is not None and today.gb_per_s is not None:
            speeds = show_gb_per_s(proposal.gb_per_s), show_gb_per_s(today.gb_per_s)
            gains.append(f"{speeds[0]} in place of {speeds[1]}")
        if proposal.num_objects is not None and today.num_objects is not None:
            objects = show_count(proposal.num_objects, "stored object")
            gains.append(f"{objects} in place of {today.num_objects:,}")
        gained = f": {', '.join(gains)}" if gains else ""
        return f"With today's chunks, written to Zarr by materialize{gained}."

    def _assumptions(self) -> str:
        speed = self.speed
        if speed.is_measured:
            how = (
                f"decoding takes {speed.decode_ns:.2f} ns a byte as zstd, and reading "
                f"{speed.today_ns:.2f} ns today, measured on "
                f"{show_count(speed.num_reads, 'chunk')}; assumed are "
                f"{speed.fetch_ns:g} ns a byte to fetch new chunks, and {speed.chunk_us:g} us a "
                "chunk beside its bytes"
            )
        else:
            how = (
                f"assumed are {speed.read_ns:g} ns to fetch and decode a byte "
                f"({speed.through_xarray_ns:g} through xarray) and {speed.chunk_us:g} us a chunk "
                "beside its bytes; advise(measure=True) measures decoding"
            )
        return (
            "Reads, mixing and memory are exact predictions. Mixing counts places of one size, so "
            "that proposals compare; explain() counts those of the chunks, and may give another "
            f"share. Speeds are estimates: {how}."
        )

    def _parts(self) -> list[CardPart]:
        heads = ["today", *(f"{n}. {p.kind}" for n, p in enumerate(self.proposals, 1))]
        columns = [proposal.cells() for proposal in (self.current, *self.proposals)]
        # The longest column first, so that rows keep its order.
        names = list(dict.fromkeys(n for column in sorted(columns, key=len)[::-1] for n in column))
        speed = "speed, measured" if self.speed.is_measured else "speed, assumed"
        rows = [
            [speed if name == "speed" else name, *(column.get(name, "-") for column in columns)]
            for name in names
        ]
        return [Words(self.in_words()), CardTable(["", *heads], rows)]

    def __str__(self) -> str:
        words, table = self._parts()
        return f"{words.to_text()}\n\n{table.to_text()}"

    def _repr_html_(self) -> str:
        return Card("Advice", "chunks for these samples", self._parts()).to_html()


def _shown(sizes: Mapping[str, int]) -> str:
    return " x ".join(f"{dim} {size:,}" for dim, size in sizes.items())
