"""The orders that are compared: sample ids of each epoch, and the reads and mixing of it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final, Literal

import numpy as np
from numpy.typing import NDArray

import xloader

Ids = NDArray[np.int64]
_NUM_READ: Final = 2
"""Tiles that are held beside a shuffle buffer. A window may reach from one into the next."""

Kind = Literal["full", "plan", "buffer", "tiles", "ascending"]


@dataclass(frozen=True)
class Way:
    """One way to order the samples of an epoch.

    Parameters
    ----------
    kind : {"full", "plan", "buffer", "tiles", "ascending"}
        A full shuffle; xloader's plan; tiles in random order through a shuffle buffer; the same
        without a buffer; or tiles and their samples in ascending order.
    num_tiles : int
        Tiles that the memory of a plan holds, or whose samples a shuffle buffer holds. Beside
        these samples, two tiles are held to read from. The other kinds are read with memory for
        so many tiles.
    max_amplification : float
        Reads a chunk that a plan may use.
    """

    kind: Kind
    num_tiles: int = 2
    max_amplification: float = 1.05

    @property
    def name(self) -> str:
        """The way in words. Results are kept by this name."""
        tiles = f"{self.num_tiles} tiles"
        if self.kind == "plan":
            more = self.max_amplification > 1.05
            bound = f", max_amplification={self.max_amplification:g}" if more else ""
            return f"even pace, {tiles}{bound}"
        return {
            "full": "full shuffle",
            "buffer": f"shuffle buffer, {tiles}",
            "tiles": "chunks in turn",
            "ascending": "sequential",
        }[self.kind]

    @property
    def held_tiles(self) -> int:
        """Memory, in tiles.

        A buffer holds samples of two steps each, and so each step about twice. The two tiles that
        are read from come on top.
        """
        return 2 * self.num_tiles + _NUM_READ if self.kind == "buffer" else self.num_tiles


SIZES: Final = (2, 4, 8, 16, 32)
FULL: Final = Way("full", 16)
WAYS: Final = (
    FULL,
    *(Way("plan", size) for size in SIZES),
    *(Way("buffer", size) for size in SIZES),
    Way("tiles"),
    Way("ascending"),
    Way("plan", 2, max_amplification=4),
)
"""Every other way is compared with the first."""

NUM_WIDE: Final = 10
"""Batches that follow each other, of which the regions are counted as well."""


@dataclass(frozen=True)
class Tiled:
    """Samples for training, and the tiles of their store.

    Parameters
    ----------
    samples : xloader.Samples
        The samples.
    tile_of : numpy.ndarray of int64, shape (num_samples,)
        The tile in which each sample begins.
    tile_nbytes, chunk_nbytes, sample_nbytes : int
        Decoded bytes of a tile, of its largest chunk and of a sample.
    """

    samples: xloader.Samples
    tile_of: Ids
    tile_nbytes: int
    chunk_nbytes: int
    sample_nbytes: int

    @property
    def num_tiles(self) -> int:
        """Number of tiles in which samples begin."""
        return len(np.unique(self.tile_of))

    def memory_of(self, num_tiles: int, batch_size: int) -> int:
        """Bytes of a loader without prefetch that holds so many tiles.

        A loader keeps two batches and the chunks on their way beside its tiles: a sixteenth of
        the memory, or two chunks if these are more.
        """
        needed = 2 * batch_size * self.sample_nbytes + num_tiles * self.tile_nbytes
        return max(needed + 2 * self.chunk_nbytes, needed + needed // 15 + 1)


@dataclass(frozen=True)
class EpochOrder:
    """The order of one epoch.

    Parameters
    ----------
    ids : numpy.ndarray of int64, shape (num_samples,)
        Every sample once.
    num_reads, num_predicted : int
        Chunks read, as counted and as predicted. Only plans are read from the store. For the
        other ways both are the prediction.
    read_amplification : float
        Reads for each chunk that the samples need.
    mixing, full_mixing : float
        Distinct regions of a batch, and of a batch of a full shuffle.
    wide_mixing, wide_full_mixing : float
        The same for ten batches that follow each other.
    """

    ids: Ids
    num_reads: int
    num_predicted: int
    read_amplification: float
    mixing: float
    full_mixing: float
    wide_mixing: float
    wide_full_mixing: float


def draw_orders(
    way: Way, tiled: Tiled, *, batch_size: int, num_epochs: int, seed: int
) -> Iterator[EpochOrder]:
    """Yield the order of each epoch. Another seed gives other orders."""
    options: dict[str, Any] = {
        "batch_size": batch_size,
        "memory": tiled.memory_of(_NUM_READ if way.kind == "buffer" else way.num_tiles, batch_size),
        "prefetch": 0,
    }
    if way.kind == "plan":
        yield from _planned(way, tiled, options, num_epochs, seed)
        return
    for epoch in range(num_epochs):
        rng = np.random.default_rng([seed, epoch])
        # A buffer holds samples that are cut out already. So chunks are read for the samples
        # that come in, and not for those that go out.
        entering, ids = _own_order(way, tiled, rng)
        read = tiled.samples.explain(order=entering, **options)
        yield EpochOrder(
            ids,
            read.num_reads,
            read.num_reads,
            read.read_amplification,
            *_mixing_of(ids, tiled, batch_size),
        )


def _planned(
    way: Way, tiled: Tiled, options: dict[str, Any], num_epochs: int, seed: int
) -> Iterator[EpochOrder]:
    """Read each epoch from the store, and yield its order with the reads that were counted."""
    with tiled.samples.loader(
        **options,
        seed=seed,
        output="numpy",
        plan=xloader.PlanRules(max_amplification=way.max_amplification),
        on_nan="ignore",
    ) as loader:
        for _ in range(num_epochs):
            predicted = loader.explain()
            ids = np.concatenate([np.array(batch.ids) for batch in loader])
            report = loader.report()
            yield EpochOrder(
                ids,
                report.num_reads,
                predicted.num_reads,
                report.read_amplification,
                *_mixing_of(ids, tiled, options["batch_size"]),
            )


def _mixing_of(ids: Ids, tiled: Tiled, batch_size: int) -> tuple[float, float, float, float]:
    """Mixing of an order and of a full shuffle: of batches, and of ten batches at a time."""
    found: list[float] = []
    for size in (batch_size, NUM_WIDE * batch_size):
        memory = tiled.memory_of(tiled.num_tiles, size)
        mixed = tiled.samples.explain(order=ids, batch_size=size, memory=memory, prefetch=0)
        found += [mixed.mixing, mixed.full_mixing]
    one, one_full, wide, wide_full = found
    return one, one_full, wide, wide_full


def _own_order(way: Way, tiled: Tiled, rng: np.random.Generator) -> tuple[Ids, Ids]:
    """The order in which samples are read, and that in which they are handed out."""
    num_samples = len(tiled.tile_of)
    if way.kind == "full":
        ids = rng.permutation(num_samples)
        return ids, ids
    if way.kind == "ascending":
        ids = np.argsort(tiled.tile_of, kind="stable")
        return ids, ids
    ids = _tiles_in_turn(tiled.tile_of, rng)
    if way.kind == "tiles":
        return ids, ids
    return ids, _buffered(ids, way.num_tiles * num_samples // tiled.num_tiles, rng)


def _tiles_in_turn(tile_of: Ids, rng: np.random.Generator) -> Ids:
    """Tiles in random order, and the samples of each in random order."""
    place = rng.permutation(int(tile_of.max()) + 1)
    shuffled = rng.permutation(len(tile_of))
    return shuffled[np.argsort(place[tile_of[shuffled]], kind="stable")]


def _buffered(ids: Ids, size: int, rng: np.random.Generator) -> Ids:
    """Samples in the order in which a shuffle buffer hands them out.

    As in tf.data and webdataset: the buffer fills; then each sample that comes in takes the place
    of a random one, which goes out; at the end the rest goes out in random order.
    """
    held = ids[:size].copy()
    out = np.empty_like(ids)
    num_out = max(len(ids) - size, 0)
    for row, place in enumerate(rng.integers(0, len(held), num_out)):
        out[row], held[place] = held[place], ids[size + row]
    out[num_out:] = rng.permutation(held)
    return out
