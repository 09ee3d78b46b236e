"""Stores that never answer for one key, and a program that reads such a store.

Its arguments are the kind of store, the door, the event to test and a folder. It prints the
outcome.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import threading
import time
from pathlib import Path
from typing import Any, Self

import numpy as np
import xarray as xr
from zarr.abc.store import Store
from zarr.storage import LocalStore, WrapperStore

import xloader
from xloader.testing import write_store

FOR_EVER = 1e6
"""A wait in seconds, longer than any test."""

released = [threading.Event()]
"""Each test has an event of its own and sets it at its end, so that stuck threads can end."""

KEY = "t/c/3/0"
STEPS = 100
SEED = 2
"""The first two batches of 4 need other chunks."""


class HangingSync(WrapperStore[Store]):
    """A store read on the calling thread; a read of the key never returns."""

    def get_sync(self, key: str, **kwargs: Any) -> Any:
        self._hang(key)
        return self._store.get_sync(key, **kwargs)  # type: ignore[attr-defined]

    async def get(self, key: str, *args: Any, **kwargs: Any) -> Any:
        self._hang(key)
        return await self._store.get(key, *args, **kwargs)

    def _hang(self, key: str) -> None:
        if key == KEY:
            released[-1].wait(FOR_EVER)


class HangingAsync(WrapperStore[Store]):
    """A store read on an event loop; a read of the key waits, and the loop keeps running."""

    _supports_sync_io = False

    def __init__(self, store: Store, key: str = KEY) -> None:
        super().__init__(store)
        self.key = key

    def _with_store(self, store: Store) -> Self:
        return type(self)(store, self.key)

    async def get(self, key: str, *args: Any, **kwargs: Any) -> Any:
        release = released[-1]
        while key == self.key and not release.is_set():
            await asyncio.sleep(0.05)
        return await self._store.get(key, *args, **kwargs)


class HangingLoop(WrapperStore[Store]):
    """A store read on an event loop; a read of the key blocks the whole loop."""

    _supports_sync_io = False

    async def get(self, key: str, *args: Any, **kwargs: Any) -> Any:
        if key == KEY:
            time.sleep(FOR_EVER)
        return await self._store.get(key, *args, **kwargs)


KINDS = {"sync": HangingSync, "async": HangingAsync, "loop": HangingLoop}


def make_samples(kind: str, folder: Path | None = None, **options: Any) -> xloader.Samples:
    ds = xr.Dataset({"t": (("time", "x"), np.arange(STEPS * 4.0).reshape(STEPS, 4))})
    store: Store
    if folder is None:
        store = write_store(ds, {"t": (5, 4)})
    elif folder.exists():
        store = LocalStore(folder)
    else:
        store = write_store(ds, {"t": (5, 4)}, folder)
    return xloader.open(KINDS[kind](store), **options).window(time=1)


def say(text: str) -> None:
    sys.stdout.write(text)
    sys.stdout.flush()


def main(kind: str, door: str, what: str, folder: str) -> None:
    # Programs that are started in the background ignore Ctrl-C by default.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    options = {"read_timeout": 0.3, "max_retries": 1} if what == "error" else {}
    samples = make_samples(kind, Path(folder), **options)
    if door == "loader":
        loader: Any = samples.loader(batch_size=4, seed=SEED, output="numpy")
    else:
        from xloader.torch import data_loader

        loader = data_loader(samples, 4, seed=SEED, num_workers=int(door.rpartition("-")[2]))
    iterator = iter(loader)
    if what == "exit":
        next(iterator)
        say("leaving")
        return
    if what == "error":
        try:
            for _ in iterator:
                pass
        except xloader.errors.ReadTimeoutError:
            say("timed out")
        return

    def interrupt() -> None:
        # By then the main thread waits for the batch that never comes.
        time.sleep(1.0)
        os.kill(os.getpid(), signal.SIGINT)

    threading.Thread(target=interrupt, daemon=True).start()
    try:
        for _ in iterator:
            pass
    except KeyboardInterrupt:
        say("interrupted")


if __name__ == "__main__":
    main(*sys.argv[1:])
