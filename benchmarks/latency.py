"""Benchmark of a store behind a server that waits 50 ms before each answer, as object stores do.

The server runs in a process of its own and sends files unchanged. For the reference, obstore
fetches the same keys with 64 requests at a time, and nothing is decoded.
"""

from __future__ import annotations

import asyncio
import dataclasses
import itertools
import threading
import time
from collections.abc import Generator
from pathlib import Path
from typing import Any, Final

from benchmarks import contest
from benchmarks.layouts import LATS, LONS, Layout, StoreSpec, Target
from benchmarks.measure import Effort
from benchmarks.ours import Plan
from benchmarks.reference import Limit
from benchmarks.results import Result
from benchmarks.turns import Competitor

DELAY_SECONDS: Final = 0.05
MOST_IN_FLIGHT: Final = 64

LAYOUT: Final = Layout(
    "latency",
    "50 ms a request, one step a chunk",
    StoreSpec("latency", (1, LATS, LONS), num_steps=480, digits=4, is_consolidated=True),
    {"time": 1},
    memory_share=0.6,
    targets=(Target("reference", 0.90),),
)
"""The memory allows 64 requests at a time, because reads may use a sixteenth of it."""


def hold(layout: Layout, path: Path, effort: Effort) -> Result:
    """Measure a layout whose store lies behind the server."""
    with Competitor("server", serve, path) as server:
        place = f"http://127.0.0.1:{server.require(server.ready())}"
        # Other libraries read sample by sample, so a batch takes them many round trips.
        effort = dataclasses.replace(effort, most_batch=4)
        return contest.hold(layout, place, effort, limit=play, makers=["isel, 0 workers"])


def play(layout: Layout, place: str, _: Plan) -> Generator[Limit | None, int, None]:
    """In each turn, receive the number of chunks to fetch, fetch them and yield the `Limit`."""
    from obstore.store import HTTPStore

    options: Any = {"allow_http": True}
    store = HTTPStore.from_url(place, client_options=options)
    keys = [
        f"{name}/c/{step}/0/0"
        for step in range(layout.store.num_steps)
        for name in layout.store.variables
    ]
    num_reads = yield None
    while True:
        wanted = list(itertools.islice(itertools.cycle(keys), num_reads))
        begin = time.perf_counter()
        asyncio.run(_fetch(store, wanted))
        num_reads = yield Limit(time.perf_counter() - begin, 0.0, len(wanted))


async def _fetch(store: Any, keys: list[str]) -> None:
    gate = asyncio.Semaphore(MOST_IN_FLIGHT)

    async def fetch(key: str) -> None:
        async with gate:
            answer = await store.get_async(key)
            await answer.bytes_async()

    await asyncio.gather(*map(fetch, keys))


def serve(folder: Path) -> Generator[int, Any, None]:
    """Serve a folder and yield the port."""
    loop = asyncio.new_event_loop()
    open_ones: set[asyncio.Transport] = set()
    listening = loop.run_until_complete(
        loop.create_server(lambda: _Connection(folder, loop, open_ones), "127.0.0.1", 0)
    )
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()
    try:
        yield listening.sockets[0].getsockname()[1]
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        listening.close()
        for transport in tuple(open_ones):
            transport.abort()
        # Sockets are closed in the loop's next round.
        loop.run_until_complete(asyncio.sleep(0))
        loop.close()


class _Connection(asyncio.Protocol):
    """One client connection: HTTP/1.1 GET and HEAD, answered one at a time, each after a delay.

    Parameters
    ----------
    folder : pathlib.Path
    loop : asyncio.AbstractEventLoop
    open_ones : set of asyncio.Transport
        Connections that are open. This one adds itself when it opens and removes itself at its end.
    """

    def __init__(
        self, folder: Path, loop: asyncio.AbstractEventLoop, open_ones: set[asyncio.Transport]
    ) -> None:
        self._folder = folder
        self._loop = loop
        self._open_ones = open_ones
        self._heard = b""
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Add the connection to the open ones."""
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self._open_ones.add(transport)

    def connection_lost(self, _: Exception | None) -> None:
        """Remove the connection from the open ones."""
        assert self._transport is not None
        self._open_ones.discard(self._transport)

    def data_received(self, data: bytes) -> None:
        """Collect data; when a request is complete, answer it after the delay."""
        self._heard += data
        if self._heard.endswith(b"\r\n\r\n"):
            method, path, *_ = self._heard.decode("latin-1").split(" ", 2)
            self._heard = b""
            self._loop.call_later(DELAY_SECONDS, self._answer, method, path.partition("?")[0])

    def _answer(self, method: str, path: str) -> None:
        assert self._transport is not None
        file = self._folder / path.lstrip("/")
        if not file.is_file():
            self._transport.write(b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n")
            return
        body = file.read_bytes()
        head = f"HTTP/1.1 200 OK\r\nContent-Length: {len(body)}\r\n\r\n".encode()
        self._transport.write(head if method == "HEAD" else head + body)


def shrink(layout: Layout) -> Layout:
    """Return the layout with less data."""
    return dataclasses.replace(layout.shrink(), memory_share=0.5)
