"""An HTTP file server that fails a given number of times and counts requests and failures."""

from __future__ import annotations

import os
import re
import socket
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Literal

os.environ["NO_PROXY"] = os.environ["no_proxy"] = "127.0.0.1"

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


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    wbufsize = -1
    disable_nagle_algorithm = True

    def __init__(self, flaky: Flaky, *args: object) -> None:
        self._flaky = flaky
        super().__init__(*args)  # type: ignore[arg-type]

    def log_message(self, *args: object) -> None: ...

    def do_HEAD(self) -> None:
        path = self._flaky.folder / self.path.lstrip("/")
        self.send_response(200 if path.is_file() else 404)
        self.send_header("Content-Length", str(path.stat().st_size if path.is_file() else 0))
        self.end_headers()

    def do_GET(self) -> None:
        path = self._flaky.folder / self.path.lstrip("/")
        if not path.is_file():
            self._answer(404)
            return
        data, status, told = path.read_bytes(), 200, ""
        wanted = re.fullmatch(r"bytes=(\d*)-(\d*)", self.headers.get("Range", ""))
        if wanted:
            first, last = wanted[1], wanted[2]
            start = int(first) if first else max(0, len(data) - int(last))
            stop = min(int(last) + 1, len(data)) if first and last else len(data)
            told = f"bytes {start}-{stop - 1}/{len(data)}"
            data, status = data[start:stop], 206
        fault = self._flaky.fault if self._flaky.is_to_fail(self.path) else ""
        if fault.isdigit():
            self._answer(int(fault))
        elif fault == "hang":
            self._flaky.is_ending.wait()
            self.close_connection = True
        elif fault == "drop":
            self._drop()
        elif fault == "cut":
            self._answer(status, data[: len(data) // 2], told, len(data))
            self._drop()
        else:
            self._answer(status, data[: len(data) // 2] if fault == "short" else data, told)

    def _drop(self) -> None:
        self.wfile.flush()
        self.close_connection = True
        self.connection.shutdown(socket.SHUT_RDWR)

    def _answer(self, status: int, body: bytes = b"", told: str = "", size: int = -1) -> None:
        self.send_response(status)
        if told:
            self.send_header("Content-Range", told)
        if status >= 400:
            self.send_header("Retry-After", "0")
        self.send_header("Content-Length", str(len(body) if size < 0 else size))
        self.end_headers()
        self.wfile.write(body)


@contextmanager
def serving(folder: Path) -> Iterator[Flaky]:
    """Serve the files of a folder."""
    flaky = Flaky(folder)
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(_Handler, flaky))
    server.daemon_threads = True
    flaky.url = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield flaky
    finally:
        flaky.is_ending.set()
        server.shutdown()
        server.server_close()
        thread.join()
