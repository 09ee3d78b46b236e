"""What an epoch cost, as measured: the same names as its explanation, and how fast it went."""

from __future__ import annotations

from dataclasses import dataclass

from xloader.figures import Figures, show_nbytes


@dataclass(frozen=True)
class Report(Figures):
    """What was read and how fast, of the epoch under way or last ended.

    Attributes
    ----------
    num_requests : int
        Requests made of the store, those for shard indexes included.
    num_retries : int
        Reads that were tried again.
    num_missing : int
        Chunks that were absent and read as the fill value.
    delivered_nbytes : int
        Bytes of the batches delivered.
    seconds : float
        From the first request for a batch to the last batch.
    wait_seconds : float
        For how long of it the consumer waited for a batch.
    bottleneck : str
        What was waited for: ``"model"`` (the consumer itself), ``"load"``, ``"gather"`` or
        ``"transforms"``.
    """

    num_requests: int
    num_retries: int
    num_missing: int
    delivered_nbytes: int
    seconds: float
    wait_seconds: float
    bottleneck: str

    def _rows(self) -> list[tuple[str, str]]:
        seconds = max(self.seconds, 1e-9)
        share = self.wait_seconds / seconds
        speed = f"{self.delivered_nbytes / seconds / 1e9:.2f} GB/s"
        delivered = f"{show_nbytes(self.delivered_nbytes)} in {self.seconds:.2f} s, {speed}"
        waited = f"{self.wait_seconds:.2f} s, {share:.0%} of it; bottleneck: {self.bottleneck}"
        rows = [*super()._rows(), ("delivered", delivered), ("waited", waited)]
        if self.num_missing:
            rows.append(("missing", f"{self.num_missing:,} chunks were absent, read as fill value"))
        return rows
