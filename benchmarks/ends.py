"""How batches mix along an epoch, and what visits buy: counted, nothing is timed.

python -m benchmarks.ends

At the start of an epoch the memory is empty, and at its end it drains. The first table says how
much less the batches there mix. The second says what more reads buy where the memory holds few
chunks.
"""

from __future__ import annotations

import argparse
import warnings
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import xarray as xr

import xloader
from xloader.testing import write_store

CHUNK: Final = 16
"""Steps of a chunk."""

WIDTH: Final = 64
"""Elements of a step."""

BATCH: Final = 16
NUM_ENDS: Final = 4
"""Batches at each end of an epoch that are looked at alone."""

BELOW: Final = 0.9
"""The share of the mixing in the middle below which a batch counts as mixing less."""


@dataclass(frozen=True)
class EndsCase:
    """Windows over a line of chunks, and the number of chunks that the memory holds.

    Parameters
    ----------
    num_chunks, window, room : int
        The chunks of the data, the steps of a window, and the chunks that the memory holds.
    """

    num_chunks: int
    window: int
    room: int

    @property
    def samples(self) -> xloader.Samples:
        """The samples, in a store in memory."""
        values = np.zeros((self.num_chunks * CHUNK, WIDTH), np.float32)
        store = write_store(xr.Dataset({"a": (("time", "x"), values)}), {"a": (CHUNK, WIDTH)})
        return xloader.open(store).window(time=self.window, stride=1)

    @property
    def options(self) -> dict[str, Any]:
        """Options of the loader: as much memory as holds the batches and the chunks."""
        step = WIDTH * 4
        batches = 4 * BATCH * self.window * step
        memory = (batches + (self.room + 2) * CHUNK * step) * 16 // 15 + 1024
        return {"batch_size": BATCH, "memory": memory, "output": "numpy", "on_nan": "ignore"}


def mixing_along(case: EndsCase, num_epochs: int) -> np.ndarray:
    """Mean mixing of each full batch of an epoch."""
    samples, found = case.samples, []
    with samples.loader(**case.options) as loader:
        for _ in range(num_epochs):
            ids = [batch.ids for batch in loader]
            full = [own for own in ids if len(own) == BATCH]
            told = [samples.explain(order=own, batch_size=BATCH, memory="1GiB") for own in full]
            found.append([own.mixing for own in told])
    return np.asarray(np.mean(found, axis=0))


def ends_row(case: EndsCase, num_epochs: int) -> str:
    """A row of the first table."""
    mixing = mixing_along(case, num_epochs)
    num = len(mixing)
    middle = mixing[num // 4 : 3 * num // 4].mean()
    told = case.samples.explain(**case.options)
    return (
        f"| {case.num_chunks} | {case.window} | {case.room} | {mixing[:NUM_ENDS].mean():.1f} "
        f"| {middle:.1f} | {mixing[-NUM_ENDS:].mean():.1f} | {mixing.mean():.1f} "
        f"| {(mixing < BELOW * middle).mean():.0%} | {told.full_mixing:.1f} |"
    )


def visits_row(case: EndsCase, bounds: tuple[float, ...]) -> str:
    """A row of the second table."""
    cells = []
    for bound in bounds:
        told = case.samples.explain(**case.options, plan=xloader.PlanRules(max_amplification=bound))
        cells.append(f"{told.read_amplification:.2f}, {told.mixing:.1f} ({told.visits})")
    return f"| {case.num_chunks} | {case.window} | {case.room} | {' | '.join(cells)} |"


def main() -> None:
    """Print both tables."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--epochs", type=int, default=8, help="epochs of each case")
    chosen = parser.parse_args()
    warnings.simplefilter("ignore", xloader.errors.XloaderWarning)
    print("| chunks | window | room for | first 4 | middle half | last 4 | epoch | less | full |")
    print("|---|---|---|---|---|---|---|---|---|")
    for case in (
        *(EndsCase(90, window, room) for window in (1, 3) for room in (8, 24)),
        EndsCase(1000, 3, 24),
    ):
        print(ends_row(case, chosen.epochs), flush=True)
    bounds = (1.05, 2.0, 4.0, 8.0)
    print("\nReads a chunk, mixing (and visits) with max_amplification:\n")
    print(f"| chunks | window | room for | {' | '.join(map(str, bounds))} |")
    print(f"|---|---|---|{'---|' * len(bounds)}")
    for case in (EndsCase(90, window, room) for window in (1, 3) for room in (2, 4, 8)):
        print(visits_row(case, bounds), flush=True)


if __name__ == "__main__":
    main()
