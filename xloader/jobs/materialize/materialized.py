"""The result of a job that writes a store: variable by variable, with reads and bytes."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from xloader.core.messages import show_count
from xloader.core.nbytes import show_nbytes
from xloader.show.cards import Card, CardSection, Words


@dataclass(frozen=True)
class MaterializedVariable:
    """One variable of a materialized store.

    Parameters
    ----------
    name : str
        Its name.
    dims : tuple of str
        Its dimensions.
    shape, chunks : tuple of int
        Number of elements of the array and of a chunk along each.
    shards : tuple of int or None
        The same of a shard; None if each chunk is an object of its own.
    dtype : str
        Dtype of the stored numbers.
    nbytes : int
        Bytes of all its values, before they are compressed.
    num_shards : int
        Number of objects that hold its chunks, those left out included.
    num_unneeded : int
        Number of these that no sample needs. They are left out.
    num_done : int
        Number of these that were written before this call.
    num_others : int
        Number of these that other parts write.
    num_written : int
        Number of these that this call wrote.
    num_chunks : int
        Number of source chunks that hold the selection.
    expected_reads, num_reads : int
        Source chunks that are read by this call: predicted, and counted.
    intermediate_chunks : tuple of int or None
        Chunks of the intermediate store that the values go through; None if there is none.
    section_nbytes : int
        Bytes of the largest part that is held in memory at a time.
    stored_nbytes : int
        Bytes of the objects that this call wrote.
    error_bound, max_error : float
        The largest error that packing may cause, 0 without packing; and the largest that packing,
        or a smaller dtype, has caused in what this call wrote.
    digest : str
        SHA-256 of all its objects; empty until all are written.
    """

    name: str
    dims: tuple[str, ...]
    shape: tuple[int, ...]
    chunks: tuple[int, ...]
    shards: tuple[int, ...] | None
    dtype: str
    nbytes: int
    num_shards: int
    num_unneeded: int
    num_done: int
    num_others: int
    num_written: int
    num_chunks: int
    expected_reads: int
    num_reads: int
    intermediate_chunks: tuple[int, ...] | None
    section_nbytes: int
    stored_nbytes: int
    error_bound: float
    max_error: float
    digest: str

    def _section(self, *, is_plan: bool) -> CardSection:
        sizes = ", ".join(f"{d}: {n}" for d, n in zip(self.dims, self.shape, strict=True))
        shards = "" if self.shards is None else f", shards {self.shards}"
        stored = f"({sizes})  {self.dtype}, {show_nbytes(self.nbytes)}; chunks {self.chunks}"
        counts = show_count(self.num_shards, "object")
        for count, why in (
            (self.num_unneeded, "that no sample needs are left out"),
            (self.num_done, "are written already"),
            (self.num_others, "belong to other parts"),
        ):
            if count:
                counts += f", {count} {why}"
        num_reads = self.expected_reads if is_plan else self.num_reads
        chunks = show_count(self.num_chunks, "source chunk")
        reads = f"{show_count(num_reads, 'read')} of {chunks}"
        if num_reads != self.expected_reads:
            reads += f" ({self.expected_reads:,} were planned)"
        if self.intermediate_chunks is not None:
            reads += f"; through an intermediate store in chunks {self.intermediate_chunks}"
        elif self.expected_reads > self.num_chunks:
            reads += "; chunks are read again, because the memory holds only "
            reads += f"{show_nbytes(self.section_nbytes)} at a time"
        lines = [counts, reads]
        if self.error_bound:
            largest = "" if is_plan else f", at most {self.max_error:.3g} found"
            lines.append(f"packing errs by up to {self.error_bound:.3g}{largest}")
        elif self.max_error:
            lines.append(f"{self.dtype} changed values by up to {self.max_error:.3g}")
        if not is_plan:
            written = f"{self.num_written} of {self.num_shards - self.num_unneeded} written now"
            lines.append(f"{written}, {show_nbytes(self.stored_nbytes)} stored")
        return CardSection(self.name, [Words(lines)], summary=stored + shards)


@dataclass(frozen=True)
class Materialized:
    """The result of :meth:`Samples.materialize`, or its plan with ``dry_run=True``.

    Parameters
    ----------
    target : str
        Name of the target, without credentials.
    variables : tuple of MaterializedVariable
        Its variables.
    is_plan : bool
        Whether only the plan was asked for.
    is_complete : bool
        Whether every object that samples need was found in the target.
    is_verified : bool
        Whether every object was read back, and its digest compared.
    expected_peak_nbytes : int
        Upper limit of the memory of the job, or of each worker process.
    num_bounds_reads : int
        Source chunks read to find the range of values to pack.
    seconds : float
        Time that it took.
    num_cluster_threads : int
        Threads of the dask cluster that writes it; 0 if this process does.
    """

    target: str
    variables: tuple[MaterializedVariable, ...]
    is_plan: bool
    is_complete: bool
    is_verified: bool
    expected_peak_nbytes: int
    num_bounds_reads: int
    seconds: float
    num_cluster_threads: int = 0

    @property
    def expected_reads(self) -> int:
        """Source chunks to read for all variables, by the plan."""
        return sum(variable.expected_reads for variable in self.variables)

    @property
    def num_reads(self) -> int:
        """Source chunks that were read to write all variables."""
        return sum(variable.num_reads for variable in self.variables)

    @property
    def stored_nbytes(self) -> int:
        """Bytes of the objects that were written."""
        return sum(variable.stored_nbytes for variable in self.variables)

    def to_dict(self) -> dict[str, Any]:
        """All figures, in types that JSON can hold."""
        return asdict(self)

    def _card(self) -> Card:
        what = "would be written" if self.is_plan else "complete"
        if not self.is_plan and not self.is_complete:
            what = "not complete yet: other parts are missing"
        end = f"up to {show_nbytes(self.expected_peak_nbytes)} of memory"
        if self.num_cluster_threads:
            threads = show_count(self.num_cluster_threads, "thread")
            end = f"on a cluster of {threads}, {end} in each worker process"
        if self.num_bounds_reads:
            more = show_count(self.num_bounds_reads, "more read")
            end += f"; {more} for the bounds of packed values"
        if not self.is_plan:
            end += f"; {show_nbytes(self.stored_nbytes)} written in {self.seconds:.1f} s"
        sections = [variable._section(is_plan=self.is_plan) for variable in self.variables]
        return Card(self.target, what, [Words([end]), *sections])

    def __str__(self) -> str:
        return self._card().to_text()

    __repr__ = __str__

    def _repr_html_(self) -> str:
        return self._card().to_html()
