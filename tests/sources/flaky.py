"""An HTTP file server that fails a given number of times and counts requests and failures."""

from __future__ import annotations

import socket
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Literal

from tests.sources.servers import Files, serve

Fault = Literal["503", "429", "403", "drop", "cut", "short", "hang"]


class Flaky:
    """Counts of requests and failures per key, and the fault that the server shows.

    Parameters
    ----------
    folder : Path
        The folder whose files are served.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.url = ""
        self.lock = threading.Lock()
        self.is_ending = threading.Event()
        self.fail("503", 0)

    def fail(self, fault: Fault, times: int, within: str = "") -> None:
        """Fail ``times`` times for each key that contains ``within``, and reset the counts."""
        with self.lock:
            self.fault, self.times, self.within = fault, times, within
            self.asked: Counter[str] = Counter()
            self.failed: Counter[str] = Counter()

    def is_to_fail(self, key: str) -> bool:
        with self.lock:
            self.asked[key] += 1
            is_to_fail = self.within in key and self.failed[key] < self.times
            self.failed[key] += is_to_fail
            return is_to_fail

    def num_failed(self, within: str) -> int:
        return sum(n for key, n in self.failed.items() if within in key)

    def num_asked(self, within: str) -> int:
        return sum(n for key, n in self.asked.items() if within in key)


class _Handler(Files):
    def __init__(self, flaky: Flaky, *args: object) -> None:
        self._flaky = flaky
        self._fault = ""
        self.is_ending = flaky.is_ending
        super().__init__(*args, directory=str(flaky.folder))  # type: ignore[arg-type]

    def send_part(self, data: bytes) -> None:
        self._fault = self._flaky.fault if self._flaky.is_to_fail(self.path) else ""
        if self._fault.isdigit():
            self.answer(int(self._fault))
        elif self._fault == "hang":
            self.stay_silent()
        elif self._fault == "drop":
            self._drop()
        else:
            super().send_part(data)

    def answer(self, status: int, body: bytes = b"", part: str = "", size: int = -1) -> None:
        if self._fault not in ("cut", "short"):
            super().answer(status, body, part, size)
            return
        half = body[: len(body) // 2]
        super().answer(status, half, part, len(body) if self._fault == "cut" else -1)
        if self._fault == "cut":
            self._drop()

    def _drop(self) -> None:
        self.wfile.flush()
        self.close_connection = True
        self.connection.shutdown(socket.SHUT_RDWR)


@contextmanager
def serving(folder: Path) -> Iterator[Flaky]:
    """Serve the files of a folder."""
    flaky = Flaky(folder)
    server = serve(partial(_Handler, flaky))
    flaky.url = f"http://127.0.0.1:{server.server_port}"
    try:
        yield flaky
    finally:
        flaky.is_ending.set()
        server.shutdown()
        server.server_close()
