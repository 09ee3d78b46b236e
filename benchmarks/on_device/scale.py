"""How large the data, the model and the effort of `benchmarks.gpu` are."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

from benchmarks.layouts import VARIABLES, StoreSpec
from benchmarks.measure import MIB

STEPS_PER_CHUNK: Final = 4


@dataclass(frozen=True)
class Scale:
    """The sizes of a run.

    Parameters
    ----------
    name : str
        Names the stores.
    num_steps, lats, lons : int
        Shape of each variable. Batches take the steps but one without a remainder, so that every
        epoch has the same samples.
    batch_size : int
        Samples of a batch.
    width : int
        Channels of the first layer of the U-Net.
    copy_nbytes : tuple of int
        Sizes of the copies for the bandwidth.
    num_values : int
        Values of a field for the ladder of dtypes.
    num_turns : int
        Turns whose median counts.
    num_epochs : int
        Epochs for pinned and resident memory.
    """

    name: str
    num_steps: int
    lats: int
    lons: int
    batch_size: int
    width: int
    copy_nbytes: tuple[int, ...]
    num_values: int
    num_turns: int
    num_epochs: int

    @property
    def store(self) -> StoreSpec:
        """The store of float32, compressed as xarray does by default."""
        chunks = (STEPS_PER_CHUNK, self.lats, self.lons)
        return StoreSpec(
            self.name, chunks, num_steps=self.num_steps, lats=self.lats, lons=self.lons
        )

    @property
    def packed_store(self) -> StoreSpec:
        """The same numbers as 16-bit integers with scale and fill value."""
        return replace(self.store, name=f"{self.name}-packed", is_packed=True)

    @property
    def batch_nbytes(self) -> int:
        """Bytes of a batch in float32: inputs and targets of one step each."""
        return 2 * self.batch_size * len(VARIABLES) * self.lats * self.lons * 4

    @property
    def memory_nbytes(self) -> int:
        """Memory of a loader that keeps the whole store decoded, so that only epoch 1 reads."""
        return 2 * self.store.nbytes + 16 * self.batch_nbytes


FULL: Final = Scale(
    "quarter-degree",
    num_steps=125,
    lats=720,
    lons=1440,
    batch_size=4,
    width=32,
    copy_nbytes=(MIB, 16 * MIB, 64 * MIB, 256 * MIB),
    num_values=64 * MIB,
    num_turns=3,
    num_epochs=32,
)
QUICK: Final = Scale(
    "coarse",
    num_steps=17,
    lats=16,
    lons=32,
    batch_size=4,
    width=8,
    copy_nbytes=(MIB,),
    num_values=MIB // 16,
    num_turns=1,
    num_epochs=3,
)
