"""What an epoch cost, as measured: the same names as its explanation, and how fast it went."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from xloader.core.nbytes import show_nbytes
from xloader.loader.advice import show_speed
from xloader.planning.figures import Figures


@dataclass(frozen=True)
class Report(Figures):
    """What was read and how fast, of the epoch under way or last ended.

    What the loader could do is estimated from what it did while the consumer waited: how many
    threads and how many fetches ahead were at work then. At that pace, what was done while the
    consumer was busy would take ``least_seconds`` together with the time waited. Where the consumer
    waited for little of the time, all threads are taken to be at work, and as many fetches as there
    ever were at a time. It leaves out that a model on the same cores slows the threads down
    (then more could be had than is said), and that more threads at a time slow each other down, as
    do more fetches (then less). Moving batches to a device and ``collate_fn`` are the consumer's.

    Attributes
    ----------
    num_requests : int
        Requests made of the store, those for shard indexes included.
    num_retries : int
        Reads that were tried again.
    num_missing : int
        Chunks that were absent and read as the fill value.
    num_skipped_samples : int
        Samples whose place another one took, with ``on_error="skip"``; ``num_samples`` leaves
        them out.
    skipped_chunks : tuple of (str, tuple of int)
        The chunks that could not be had then, by variable and index.
    num_nan : mapping of str to int
        Per field that holds any, the NaN values in the batches that were looked at: all of them
        with ``on_nan="count"`` or ``"raise"``, the first eight with ``"warn"``, none with
        ``"ignore"``.
    delivered_nbytes : int
        Bytes of the batches delivered.
    seconds : float
        From the first request for a batch to the last batch.
    wait_seconds : float
        For how long of it the consumer waited for a batch.
    num_threads : int
        Threads that read, gathered and transformed.
    busy_seconds : mapping of str to float
        Seconds of these threads by stage: ``"fetch"``, ``"decode"``, ``"gather"`` (finding the
        rows of a batch included) and ``"transform"``. What xarray reads counts as decoded.
    num_ahead : int
        Fetches that were made ahead, beside the threads: of what waits, as a distant store.
    ahead_seconds : float
        Their seconds, summed.
    least_seconds : float
        How long it would have taken, about, had the consumer taken no time.
    bottleneck : str
        What holds it up: ``"consumer"``, ``"fetch"``, ``"decode"``, ``"gather"`` or
        ``"transform"``. The consumer does where it waits for less than a tenth of the time, or
        takes longer than the loader would need.
    advice : str
        The same in words, and what would help.
    """

    num_requests: int
    num_retries: int
    num_missing: int
    num_skipped_samples: int
    skipped_chunks: tuple[tuple[str, tuple[int, ...]], ...]
    num_nan: Mapping[str, int]
    delivered_nbytes: int
    seconds: float
    wait_seconds: float
    num_threads: int
    busy_seconds: Mapping[str, float]
    num_ahead: int
    ahead_seconds: float
    least_seconds: float
    bottleneck: str
    advice: str

    @property
    def headroom(self) -> float:
        """How many times as fast the loader could be, if the consumer took no time: 1 or more."""
        return self.seconds / self.least_seconds if self.least_seconds else 1.0

    def _rows(self) -> list[tuple[str, str]]:
        seconds = max(self.seconds, 1e-9)
        size = show_nbytes(self.delivered_nbytes)
        rows = [
            *super()._rows(),
            ("delivered", f"{size} in {self.seconds:.2f} s, {self._speed(seconds)}"),
            ("waited", f"{self.wait_seconds:.2f} s, {self.wait_seconds / seconds:.0%} of it"),
            ("threads", self._busy()),
        ]
        if self.num_ahead:
            each = 1e3 * self.ahead_seconds / self.num_ahead
            rows.append(("ahead", f"{self.num_ahead:,} fetches of {each:.1f} ms"))
        could = f"{self._speed(self.least_seconds or seconds)}: {self.headroom:.1f} times as fast"
        rows += [("headroom", could), ("bottleneck", f"{self.bottleneck}. {self.advice}")]
        if self.num_retries:
            share = f"{self.num_retries:,} of {self.num_requests:,} requests"
            rows.append(("retries", f"{share} were made because one before had failed"))
        if self.num_missing:
            rows.append(("missing", f"{self.num_missing:,} chunks were absent, read as fill value"))
        if self.skipped_chunks:
            chunks = f"{len(self.skipped_chunks):,} chunks that could not be read"
            rows.append(("skipped", f"{self.num_skipped_samples:,} samples, of {chunks}"))
        if self.num_nan:
            counts = ", ".join(f"{name} {num:,}" for name, num in self.num_nan.items())
            rows.append(("NaN", f"{counts} values, in the batches that were looked at"))
        return rows

    def _speed(self, seconds: float) -> str:
        return show_speed(self.delivered_nbytes / seconds, self.num_samples / seconds)

    def _busy(self) -> str:
        whole = max(self.num_threads * self.seconds, sum(self.busy_seconds.values()), 1e-9)
        shares = [f"{stage} {s / whole:.0%}" for stage, s in self.busy_seconds.items()]
        return f"{', '.join(shares)} of the time of {self.num_threads}"
