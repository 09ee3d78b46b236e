"""A store behind a server that waits 50 ms before each answer, as an object store does.

The server runs in a process of its own and sends files as they are. The reference is the same
keys fetched bare by obstore, with 64 requests under way and nothing decoded.
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
"""Its memory allows 64 requests under way, for a sixteenth of it is for reads."""


def hold(layout: Layout, path: Path, effort: Effort) -> Result:
    """Measure a layout whose store lies behind the server."""
    with Competitor("server", serve, path) as server:
        place = f"http://127.0.0.1:{server.require(server.ready())}"
        # Sample by sample, a batch takes others many round trips.
        effort = dataclasses.replace(effort, most_batch=4)
        return contest.hold(layout, place, effort, limit=play, makers=["isel, 0 workers"])


def play(layout: Layout, place: str, _: Plan) -> Generator[Limit | None, int, None]:
    """For each turn be told how many chunks to fetch, and give the `Limit`."""
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
    """Serve a folder, and give the port."""
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
    """One client: GET and HEAD of HTTP/1.1, one request after another, each answered late.

    Parameters
    ----------
    folder : pathlib.Path
    loop : asyncio.AbstractEventLoop
    open_ones : set of asyncio.Transport
        Where it is while it is open.
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
        """Remember where answers go."""
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self._open_ones.add(transport)

    def connection_lost(self, _: Exception | None) -> None:
        """Forget it."""
        assert self._transport is not None
        self._open_ones.discard(self._transport)

    def data_received(self, data: bytes) -> None:
        """Answer later, where a request is whole."""
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
    """The same in small."""
    return dataclasses.replace(layout.shrink(), memory_share=0.5)
