"""Advice in words: what limits the speed of an epoch, and what would help.

The rules, in the order in which they apply: bottleneck and condition, then the advice::

    unclear                    the epoch is too short to tell, others use the cores, or nothing
                               keeps the threads busy
    consumer                   how fast the loader could be
    fetch, many retries        the store fails
    fetch, decode              chunks are read several times: more memory
    lock                       by the busiest stage: a compiled gather, functions that free the
                               lock, larger chunks or windows; worker processes
    any, fewer threads         chunks too large for the threads asked for, if cores are free
    fetch, ahead               too few bytes in flight: more memory; else larger chunks
    fetch, on the threads      more threads
    decode                     more cores, a faster codec; a copy in Zarr where xarray reads
    gather                     more cores, fewer fields; larger windows where samples are small
    transform                  more cores, fewer functions, whole batches
"""

from __future__ import annotations

from xloader.core.messages import show_count
from xloader.core.nbytes import show_nbytes
from xloader.engine.fetches_ahead import MOST_REQUESTS
from xloader.errors import show_memory
from xloader.loader.reports.bottleneck import SHORT_SECONDS, EpochEffort

_BUSY_CONSUMER = 0.1
"""Share of the epoch's time. A consumer that is busy for longer is mentioned beside the lock."""

_LITTLE_HEADROOM = 1.1
"""Below this headroom, the loader is about as slow as its consumer."""

_SMALL_CHUNK_NBYTES = 1 << 20
"""Decoded bytes of a chunk. Python around each smaller one takes about as long as decoding it."""

_MUCH_GATHERING = 0.2
"""Share of the threads' busy time from which on NumPy's gathering is named as a cause."""

_MUCH_AMPLIFICATION = 1.25
"""Read amplification from which on the advice is to save reads."""

_SMALL_SAMPLE_NBYTES = 16 << 10
"""Bytes of a sample. A smaller one takes longer to find than to copy."""

_MANY_RETRIES = 0.1
"""Share of retries among the requests, above which they count as the cause."""

_GROWTH = 4
"""Most times the present memory that is suggested where memory bounds the fetches."""


def advise(effort: EpochEffort) -> str:
    """Say what limits the speed of an epoch, and what would help."""
    stage = effort.bottleneck
    if not effort.seconds or not effort.delivered_nbytes:
        return "Nothing has been delivered yet."
    if stage == "unclear":
        why = (
            f"{effort.awaited_threads:.1f} of {effort.num_threads} threads worked while the "
            "training loop waited. A longer epoch, on cores to itself, tells more."
        )
        if effort.is_disturbed:
            why = (
                f"threads waited {effort.core_wait_share:.0%} of their time at work for a core, "
                "while this process had cores left. Other programs seem to use them."
            )
        return too_short(effort.seconds) or f"Hard to tell: {why}"
    if stage == "consumer":
        return _of_consumer(effort)
    tally = effort.tally
    if stage == "fetch" and tally.num_retries > _MANY_RETRIES * tally.num_requests:
        share = f"{tally.num_retries / tally.num_requests:.0%} of the requests"
        return (
            f"The store is unreliable: {share} were retries after failed ones. A more reliable "
            "store, or fewer readers at a time, would help."
        )
    # Whether more of the threads asked for could have worked on free cores.
    lacks_threads = effort.num_threads < effort.num_asked and effort.has_free_cores
    is_read_often = effort.read_amplification >= _MUCH_AMPLIFICATION
    if stage in ("fetch", "decode") and is_read_often:
        cause = f"Too little memory: each chunk is read {effort.read_amplification:.1f} times."
        memory = show_given_memory(effort.budget.memory_nbytes)
        remedy = f"{cause} More than {memory}, or smaller chunks, would save reads."
    elif stage == "lock":
        remedy = _of_lock(effort)
    elif lacks_threads and not (stage == "fetch" and effort.is_ahead):
        remedy = _smaller_chunks(effort)
    elif stage == "fetch":
        remedy = _of_fetch(effort)
    else:
        remedy = _of_computing(effort, stage)
    return f"{_cause(effort, stage)} {remedy}"


def too_short(seconds: float) -> str:
    """Say that an epoch is too short for advice; empty if it is not."""
    if seconds >= SHORT_SECONDS:
        return ""
    return f"Too short to tell: {seconds:.2f} s. An epoch of a second or more tells."


def helpful_processes(num_cores: int) -> int:
    """How many worker processes are suggested where Python's lock holds the threads up."""
    return max(2, num_cores // 2)


def show_speed(nbytes: float, num_samples: float) -> str:
    """A speed as text.

    `nbytes`: bytes per second. `num_samples`: samples per second.
    """
    return f"{show_rate(nbytes)}, {num_samples:,.{0 if num_samples >= 100 else 1}f} samples/s"


def show_rate(nbytes: float) -> str:
    """Bytes a second as text."""
    return f"{nbytes / 1e9:.2f} GB/s" if nbytes >= 1e8 else f"{nbytes / 1e6:.1f} MB/s"


def show_given_memory(nbytes: int) -> str:
    """The option ``memory`` as it was given, exactly; `show_memory` rounds a need up."""
    unit = 1 << 10 * min((nbytes.bit_length() - 1) // 10, 4)
    if 10 * nbytes % unit == 0:
        return f'memory="{show_nbytes(nbytes).replace(" ", "")}"'
    for unit, name in ((1 << 10, "KiB"), (1000, "kB")):
        if nbytes % unit == 0:
            return f'memory="{nbytes // unit}{name}"'
    return f"memory={nbytes}"


def _of_consumer(effort: EpochEffort) -> str:
    least = effort.least_seconds
    speed = show_speed(effort.delivered_nbytes / least, effort.num_samples / least)
    taken = f"The training loop is what you wait for, {1 - effort.wait_share:.0%} of the time"
    if effort.is_locked:
        taken = (
            f"The threads wait for Python's lock {effort.lock_share:.0%} of their time at work: "
            "Python code of the consumer may hold it, and with processes=1 the loader would not "
            f"need it. {taken}"
        )
    if effort.headroom < _LITTLE_HEADROOM:
        return f"{taken}, and the loader needs as long: the epoch gets faster only if both do."
    return f"{taken}: the loader could deliver {speed}, {effort.headroom:.1f} times as fast as now."


def _cause(effort: EpochEffort, stage: str) -> str:
    if stage == "lock":
        share = f"{effort.lock_share:.0%} of the threads' time at work"
        return f"Lock-bound: waiting for Python's lock takes {share}."
    tally, share = effort.tally, f"{effort.shares[stage]:.0%} of the threads' time"
    if stage == "fetch" and effort.is_ahead:
        each = _show_seconds(tally.ahead_seconds / tally.num_ahead)
        return f"Storage-bound: fetches take {each} each, {effort.num_fetching:.1f} at a time."
    if stage == "fetch":
        each = _show_seconds(tally.fetch_seconds / max(tally.num_requests, 1))
        return f"Storage-bound: waiting for the store takes {share}, {each} per request."
    if stage == "decode" and not effort.is_direct:
        return f"Reading through xarray takes {share}."
    doing = {"decode": "decoding takes", "gather": "gathering rows takes"}
    return f"CPU-bound: {doing.get(stage, 'transforms take')} {share}."


def _smaller_chunks(effort: EpochEffort) -> str:
    chunk, budget = effort.budget.max_chunk_nbytes, effort.budget
    given = show_given_memory(budget.memory_nbytes)
    # What each of these threads has is enough for one, and may be less than a decoded chunk.
    needed = min(chunk, budget.in_flight_nbytes / max(effort.num_threads, 1))
    enough = show_memory(_memory_for(effort.num_asked, needed))
    return (
        f"Chunks too large: at {show_nbytes(chunk)} per chunk, {given} "
        f"lets {effort.num_threads} of {effort.num_asked} threads work. With smaller chunks, or "
        f"{enough}, all could work."
    )


def _of_fetch(effort: EpochEffort) -> str:
    if not effort.is_ahead:
        return "More threads would wait at the same time: raise threads=."
    memory, each = effort.budget.memory_nbytes, effort.tally.ahead_nbytes / effort.tally.num_ahead
    num_now = effort.budget.in_flight_nbytes / each
    if num_now >= MOST_REQUESTS:
        return "Larger chunks, shards, or a nearer store would help."
    more = min(_GROWTH * memory, _memory_for(MOST_REQUESTS, each))
    num_then = min(MOST_REQUESTS, max(more // 16, 1) / each)
    return (
        f"1/16 of the memory is for chunks in flight, and holds {num_now:.0f} of them; "
        f"{show_memory(more)} would hold {num_then:.0f}."
    )


def _of_computing(effort: EpochEffort, stage: str) -> str:
    more = _more_cores(effort)
    if stage == "decode" and not effort.is_direct:
        return f"{more} may help; chunks of a copy in Zarr would be decoded directly."
    other = "fewer functions, or functions of a whole batch instead of per='sample'"
    if stage == "decode":
        other = "or a faster codec such as lz4 or blosc"
    elif stage == "gather":
        windows = _larger_windows(effort)
        other = f"{windows}, larger batches or fewer fields" if windows else "or fewer fields"
    return f"{more}, {other}, would help."


def _larger_windows(effort: EpochEffort) -> str:
    """Larger windows as a remedy; empty if samples are not small."""
    each = effort.delivered_nbytes // max(effort.num_samples, 1)
    is_small = each < _SMALL_SAMPLE_NBYTES
    return f"larger windows than {show_nbytes(each)} per sample" if is_small else ""


def _more_cores(effort: EpochEffort) -> str:
    """More cores as the beginning of a remedy: more threads only help where cores are free."""
    if effort.has_free_cores:
        return "More cores (threads=)"
    return f"More than {show_count(effort.num_cores, 'core')}"


def _of_lock(effort: EpochEffort) -> str:
    remedies = [remedy for remedy in (_compiled(effort), _less_python(effort)) if remedy]
    num = helpful_processes(effort.num_cores)
    processes = " or ".join([", ".join(remedies), f"worker processes (processes={num})"])
    text = f"More threads would not help; {processes.removeprefix(' or ')} would."
    if effort.wait_share < 1 - _BUSY_CONSUMER:
        text += " Python code of the consumer may hold the lock too."
    return text


def _compiled(effort: EpochEffort) -> str:
    busy = effort.busy_seconds
    if not effort.why_numpy or busy["gather"] < _MUCH_GATHERING * sum(busy.values()):
        return ""
    return f"the compiled gather, which needs no lock (missing: {effort.why_numpy})"


def _less_python(effort: EpochEffort) -> str:
    """A way to run less Python code in the busiest stage; empty if none is known."""
    stage, chunk_nbytes = effort.busiest_stage, effort.budget.max_chunk_nbytes
    if stage == "transform":
        return "NumPy on whole batches instead of loops in Python and per='sample'"
    if stage == "gather":
        return _larger_windows(effort) or "fewer fields"
    if effort.is_direct and chunk_nbytes < _SMALL_CHUNK_NBYTES:
        num = effort.tally.num_reads / effort.seconds
        return f"larger chunks than {show_nbytes(chunk_nbytes)} ({num:,.0f} are read per second)"
    return ""


def _memory_for(num: int, nbytes: float) -> int:
    """Bytes of memory, in whole MiB, of which 1/16 holds ``num`` chunks of ``nbytes`` each."""
    return -(-int(16 * num * nbytes) // 2**20) * 2**20


def _show_seconds(seconds: float) -> str:
    if seconds >= 1:
        return f"{seconds:.1f} s"
    return f"{1e3 * seconds:.0f} ms" if seconds >= 0.01 else f"{1e3 * seconds:.2f} ms"
