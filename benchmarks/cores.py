"""How many cores a loader can keep busy, told on a machine that has few.

python -m benchmarks.cores                       # all layouts, 2 to 32 threads
python -m benchmarks.cores --only steps1 small   # some of them

Decompression is replaced by a sleep of 2 ns for each decoded byte. A sleep needs neither a core nor
Python's lock, so 16 threads decode side by side on any machine. What the loader does besides still
needs the lock or a core, and shows as the distance from as many threads that only sleep.

Beside it, with a codec that costs nothing and two threads: CPU seconds for each GB, and the share
of time in which Python's lock is held. For the latter, in epochs of their own, a thread knocks once
a millisecond. Where it comes late, it waited for a core, for as long as the system says, or else
for the lock. Knocks that it missed meanwhile count as well. Lateness below 0.3 ms is left out,
because waking up takes up to that. So many short holds in a row count as one, and a few short ones
as none.
"""

from __future__ import annotations

import argparse
import tempfile
import threading
import time
from collections.abc import Generator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal

from benchmarks.layouts import LAYOUTS, Layout
from benchmarks.measure import Usage
from benchmarks.ours import samples_of
from benchmarks.stores import ensure_stores
from benchmarks.turns import Competitor
from xloader.engine.tally import WorkClock
from xloader.testing import pretend_codec

Codec = Literal["sleep", "free"]
"""Sleeps, or does nothing."""

NS_PER_BYTE: Final = 2.0
NUM_THREADS: Final = (2, 8, 16, 32)
NUM_TURNS: Final = 3
KNOCK_SECONDS: Final = 1e-3
LATE_SECONDS: Final = 3e-4


@dataclass(frozen=True)
class Request:
    """What a process is asked to measure.

    Parameters
    ----------
    codec : {"sleep", "free"}
        The codec.
    num_threads : int
        Threads of the loader.
    is_knocked : bool
        Whether Python's lock is knocked at, which takes CPU time itself.
    """

    codec: Codec
    num_threads: int
    is_knocked: bool = False


@dataclass(frozen=True)
class Figures:
    """The best of several epochs.

    Parameters
    ----------
    gb_per_second : float
        Decoded bytes, in units of 10^9, over the time of the epoch.
    cpu_per_gb : float
        CPU seconds of the process for each 10^9 decoded bytes.
    held_share : float
        Share of the time in which Python's lock was held; 0 where nobody knocked.
    """

    gb_per_second: float
    cpu_per_gb: float
    held_share: float = 0.0


class Knocks:
    """A thread that asks for Python's lock again and again, and counts how often it has to wait.

    Where the system does not count waits for a core (other than Linux), these count as waits for
    the lock.
    """

    def __init__(self) -> None:
        self._is_over = False
        self._num = self._num_held = 0.0
        self._thread = threading.Thread(target=self._knock)

    def __enter__(self) -> Knocks:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._is_over = True
        self._thread.join()

    @property
    def share(self) -> float:
        """Share of the time in which the lock was held, as far as the knocks can tell."""
        return self._num_held / max(self._num, 1.0)

    def _knock(self) -> None:
        clock = WorkClock()
        core_seconds = clock.core_seconds()
        while not self._is_over:
            begin = time.perf_counter()
            time.sleep(KNOCK_SECONDS)
            late = time.perf_counter() - begin - KNOCK_SECONDS
            core_seconds, before = clock.core_seconds(), core_seconds
            late -= core_seconds - before
            # While this thread waited for the lock, it would have knocked again, and in vain.
            num = 1.0 + max(late, 0.0) / KNOCK_SECONDS
            self._num += num
            self._num_held += num * (late > LATE_SECONDS)
        clock.close()


def play(layout: Layout, place: str) -> Generator[Any, Any, None]:
    """Open the store; then for each `Request` give its `Figures`."""
    request = yield None
    while True:
        with pretend_codec(NS_PER_BYTE if request.codec == "sleep" else 0.0):
            figures = _measure(layout, place, request)
        request = yield figures


def sleep_alone(num_threads: int, chunk_nbytes: int) -> float:
    """GB/s of threads that only sleep as long as chunks of this size would: sleeps last longer."""
    seconds = NS_PER_BYTE * chunk_nbytes * 1e-9

    def sleep(_: int) -> int:
        num, end = 0, time.perf_counter() + 1.0
        while time.perf_counter() < end:
            time.sleep(seconds)
            num += 1
        return num

    with ThreadPoolExecutor(num_threads) as threads:
        begin = time.perf_counter()
        num_chunks = sum(threads.map(sleep, range(num_threads)))
        return num_chunks * chunk_nbytes / (time.perf_counter() - begin) / 1e9


def _measure(layout: Layout, place: str, request: Request) -> Figures:
    samples = samples_of(layout, place)
    options: dict[str, Any] = {"batch_size": layout.batch_size, "memory": layout.memory_nbytes}
    loader = samples.loader(
        **options, output="numpy", threads=request.num_threads, on_nan="ignore", shuffle=True
    )
    found = []
    with loader:
        for _ in range(1 + NUM_TURNS):
            begin = Usage.now()
            if request.is_knocked:
                with Knocks() as knocks:
                    num = sum(1 for _ in loader)
                share = knocks.share
            else:
                num, share = sum(1 for _ in loader), 0.0
            used = Usage.now() - begin
            assert num == len(loader)
            nbytes = loader.report().read_nbytes / 1e9
            found.append(Figures(nbytes / used.seconds, used.cpu_seconds / nbytes, share))
    return max(found[1:], key=lambda own: own.gb_per_second)


def main() -> None:
    """Measure the layouts that were asked for, and print a table."""
    options = _parse()
    layouts = [own for own in LAYOUTS if own.name in options.only and not own.is_in_memory]
    paths = ensure_stores(options.folder, [layout.store for layout in layouts])
    numbers = options.threads
    heads = [f"{number} threads" for number in numbers]
    heads += ["CPU s/GB, free codec", "lock held"]
    print(f"| layout | {' | '.join(heads)} |")
    print("| --- " * (1 + len(heads)) + "|")
    for layout in layouts:
        cells = _row(layout, str(paths[layout.store]), numbers)
        print(f"| {layout.title} | {' | '.join(cells)} |", flush=True)


def _row(layout: Layout, place: str, numbers: list[int]) -> list[str]:
    cells = []
    with Competitor(layout.name, play, layout, place) as process:
        process.require(process.ready())
        for number in numbers:
            request = Request("sleep", number)
            speed = process.require(process.turn(request)).gb_per_second
            alone = sleep_alone(number, layout.store.chunk_nbytes)
            cells.append(f"{speed:.2f} GB/s ({speed / alone:.2f})")
        free = process.require(process.turn(Request("free", 2)))
        knocked = process.require(process.turn(Request("free", 2, is_knocked=True)))
        cells += [f"{free.cpu_per_gb:.2f}", f"{knocked.held_share:.0%}"]
    return cells


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.cores", description=(__doc__ or "").splitlines()[0]
    )
    names = [layout.name for layout in LAYOUTS if not layout.is_in_memory]
    parser.add_argument("--only", nargs="+", choices=names, default=names)
    parser.add_argument(
        "--threads",
        type=lambda text: [int(part) for part in text.split(",")],
        default=list(NUM_THREADS),
    )
    parser.add_argument(
        "--folder", type=Path, default=Path(tempfile.gettempdir()) / "xloader-bench"
    )
    return parser.parse_args()


if __name__ == "__main__":
    main()
