"""The report of an epoch: its cost as measured, and its speed.

The cost has the same names as in the explanation, which predicts it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from xloader.core.messages import require_matplotlib, show_count
from xloader.core.nbytes import show_nbytes
from xloader.errors import OptionError
from xloader.loader.reports.advice import show_rate, show_speed
from xloader.loader.reports.bottleneck import STAGES, EpochSeries
from xloader.show.cost_figures import Figures, TitledTable, comparison_tables, find_set

if TYPE_CHECKING:
    from xloader.planning.explain import Explanation
    from xloader.show.canvas import Picture
    from xloader.show.cards import CardPart

_COMPARED_ROWS = ("reads", "amplification", "mixing", "memory")
"""Rows that are left out where the table beside the plan has them."""


@dataclass(frozen=True, kw_only=True)
class Report(Figures):
    """The amounts read and the speed of an epoch.

    It has the figures of :class:`Explanation` up to ``shares``, as measured, and those below.
    ``least_seconds`` is the time that training waited, plus the time that the rest of the work
    would take at the pace of the waits.

    Attributes
    ----------
    num_requests, num_retries : int
        Requests made of the store, and those that repeated a failed one.
    num_missing : int
        Absent chunks, which were read as the fill value.
    num_skipped_samples : int
        With ``on_error="skip"``, samples that another row replaced.
    skipped_chunks : tuple of (str, tuple of int)
        The chunks that could not be read: variable and index.
    num_nan : mapping of str to int
        NaN values by field, in the batches that ``on_nan`` checks.
    delivered_nbytes : int
        Bytes of the batches delivered.
    seconds : float
        Seconds from the first request for a batch to the last batch.
    wait_seconds : float
        Seconds in which the training loop waited for a batch.
    cpu_seconds : float
        Seconds that all threads of this process were on a core, training included.
    num_cores, num_threads : int
        Cores that this process may use, and the loader's threads.
    busy_seconds : mapping of str to float
        Seconds of these threads by stage: ``"fetch"``, ``"decode"``, ``"gather"`` and
        ``"transform"``.
    lock_wait_seconds : float
        Estimated seconds in which these threads waited for Python's lock: at work without computing
        and without waiting for a core.
    core_wait_seconds : float
        Seconds in which these threads waited for a core.
    num_ahead, ahead_seconds : int, float
        Fetches made ahead by other threads, for stores that mostly wait, and their seconds, summed.
    least_seconds : float
        Estimated seconds of the epoch if the training loop took no time.
    pinning_refusal : str
        Why the system refused to pin the memory of batches, or empty.
    bottleneck : str
        What limits the speed: ``"consumer"`` (the training loop: it waits for less than a tenth of
        the time, or is busy for longer than ``least_seconds``), ``"fetch"``, ``"decode"``,
        ``"gather"``, ``"transform"``, ``"lock"`` (two threads or more wait for Python's lock for 30
        % of their time at work, and cores are free) or ``"unclear"``.
    advice : str
        The bottleneck in words, and what would help.
    """

    _derived = (
        "headroom",
        "requests_per_second",
        "delivered_nbytes_per_second",
        "read_nbytes_per_second",
        "cores_busy",
    )

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
    lock_wait_seconds: float
    core_wait_seconds: float
    cpu_seconds: float
    num_cores: int
    num_ahead: int
    ahead_seconds: float
    least_seconds: float
    bottleneck: str
    advice: str
    pinning_refusal: str = ""
    _expected: Explanation | None = field(default=None, compare=False, repr=False)
    _series: EpochSeries | None = field(default=None, compare=False, repr=False)

    def plot(self, name: str | None = None) -> Picture:
        """Draw the stages over time, the batches that were ready, the waits, and bytes per second.

        Parameters
        ----------
        name : str, optional
            Of several sets of samples, the one whose loader is drawn.

        Returns
        -------
        matplotlib.figure.Figure
            Four panels over the seconds of the epoch, from at most 2,048 points.

        Raises
        ------
        OptionError
            If no batch was delivered, or there are several sets and none is named.
        UnknownNameError
            If there is no such set.
        MissingDependencyError
            If matplotlib is not installed.
        """
        if self.sets:
            picture: Picture = find_set(self.sets, name, "report().plot").plot()
            return picture
        require_matplotlib()
        series = self._series
        if series is None or series.seconds[-1] <= 0:
            raise OptionError("there is nothing to draw yet", remedy="iterate over the loader")
        from xloader.show.epoch_plots import draw_stages

        batches = show_count(self.num_steps, "batch")
        return draw_stages(
            series.seconds,
            STAGES,
            series.busy_seconds,
            self.num_threads,
            series.num_ready,
            series.wait_seconds,
            {"read, decoded": series.read_nbytes, "delivered": series.delivered_nbytes},
            f"{batches} in {self.seconds:.2f} s. Bottleneck: {self.bottleneck}",
        )

    @property
    def expected(self) -> Explanation | None:
        """The prediction for the epoch, or after a resume for the rest of it."""
        return self._expected

    @property
    def requests_per_second(self) -> float:
        """Requests made of the store per second."""
        return self._per_second(self.num_requests)

    @property
    def delivered_nbytes_per_second(self) -> float:
        """Bytes of the batches delivered per second."""
        return self._per_second(self.delivered_nbytes)

    @property
    def read_nbytes_per_second(self) -> float:
        """Decoded bytes of the chunks read per second."""
        return self._per_second(self.read_nbytes)

    @property
    def cores_busy(self) -> float:
        """Average number of cores that computed for this process; see ``cpu_seconds``."""
        return self._per_second(self.cpu_seconds)

    def to_json(self, indent: int | None = 2, *, with_plan: bool = False) -> str:
        """The figures as JSON.

        Parameters
        ----------
        indent : int, optional
            Spaces by which nested parts are indented; None for one line.
        with_plan : bool, default False
            Whether to put the plan beside the figures.

        Returns
        -------
        str
            An object with the keys of `to_dict`; with the plan, an object with ``"planned"``, the
            keys of an explanation, and ``"measured"``, those of the report.
        """
        if not with_plan:
            return super().to_json(indent)
        planned = None if self._expected is None else self._expected.to_dict()
        return json.dumps({"planned": planned, "measured": self.to_dict()}, indent=indent)

    @property
    def headroom(self) -> float:
        """How many times as fast the loader could be if the consumer took no time: 1 or more."""
        return self.seconds / self.least_seconds if self.least_seconds else 1.0

    def _drawings(self) -> list[CardPart]:
        from xloader.show.drawings import time_parts

        return time_parts(self.seconds, self.wait_seconds, self.busy_seconds, self.num_threads)

    def _per_second(self, amount: float) -> float:
        return amount / self.seconds if self.seconds else 0.0

    def _sections(self) -> list[TitledTable]:
        return [] if self._expected is None else comparison_tables(self._expected, self)

    def _rows(self) -> list[tuple[str, str]]:
        decoded = f"{show_nbytes(self.read_nbytes)}, {show_rate(self.read_nbytes_per_second)}"
        requests = show_count(self.num_requests, "request")
        requests += f", {self.requests_per_second:,.0f} per second"
        seconds = max(self.seconds, 1e-9)
        delivered, waited = show_nbytes(self.delivered_nbytes), f"{self.wait_seconds:.2f} s"
        share = f"the loader's share of a step is {self.wait_seconds / seconds:.1%}"
        compared = set() if self._expected is None else set(_COMPARED_ROWS)
        if self.num_samples and not self.num_reads:
            # The row says why nothing was read.
            compared.discard("reads")
        rows = [
            *(row for row in super()._rows() if row[0] not in compared),
            ("delivered", f"{delivered} in {self.seconds:.2f} s, {self._speed(seconds)}"),
            ("decoded", f"{decoded}; {requests}"),
            ("waited", f"{waited}: {share}"),
            ("threads", self._busy()),
            ("cores", f"{self.cores_busy:.1f} of {self.num_cores} busy, training included"),
        ]
        if self.lock_wait_seconds or self.core_wait_seconds:
            lock, core = f"{self.lock_wait_seconds:.2f} s", f"{self.core_wait_seconds:.2f} s"
            rows.append(("waits", f"{lock} for Python's lock, {core} for a core, all threads"))
        if self.num_ahead:
            each = 1e3 * self.ahead_seconds / self.num_ahead
            rows.append(("ahead", f"{show_count(self.num_ahead, 'fetch')} of {each:.1f} ms"))
        if self.bottleneck != "consumer":
            # Elsewhere the advice says it.
            could = self._speed(self.least_seconds or seconds)
            rows.append(("headroom", f"{could}: {self.headroom:.1f} times as fast"))
        rows.append(("bottleneck", f"{self.bottleneck}. {self.advice}"))
        if self.pinning_refusal:
            rows.append(("pinning", f"refused, so copies are slower: {self.pinning_refusal}"))
        where = f" in {show_count(len(self.skipped_chunks), 'chunk')} that could not be read"
        return rows + self._fault_rows(where * bool(self.skipped_chunks))

    def _speed(self, seconds: float) -> str:
        return show_speed(self.delivered_nbytes / seconds, self.num_samples / seconds)

    def _fault_rows(self, where_skipped: str = "") -> list[tuple[str, str]]:
        retries = f"{self.num_retries:,} of {self.num_requests:,} requests repeated a failed one"
        absent = f"{show_count(self.num_missing, 'chunk')} absent, read as the fill value"
        skipped = f"{show_count(self.num_skipped_samples, 'sample')}{where_skipped}"
        counts = ", ".join(f"{name} {num:,}" for name, num in self.num_nan.items())
        rows = (
            (self.num_retries, "retries", retries),
            (self.num_missing, "missing", absent),
            (self.num_skipped_samples or where_skipped, "skipped", skipped),
            (counts, "NaN", f"{counts} values, in the batches that were checked"),
        )
        return [(name, text) for is_shown, name, text in rows if is_shown]

    def _title(self) -> str:
        return "Report of several sets" if self.sets else "Report"

    def _busy(self) -> str:
        whole = max(self.num_threads * self.seconds, sum(self.busy_seconds.values()), 1e-9)
        shares = [f"{stage} {s / whole:.0%}" for stage, s in self.busy_seconds.items()]
        return f"{', '.join(shares)} of the time of {show_count(self.num_threads, 'thread')}"
