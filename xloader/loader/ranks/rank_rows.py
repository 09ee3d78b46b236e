"""How many rows ranks have in an epoch: equally many, as they wait for each other in each step."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from xloader.core.ranks import World


@dataclass(frozen=True)
class RankRows:
    """The rows of the ranks in an epoch. Ranks have equally many samples, give or take one."""

    num_samples: int
    num_steps: int
    batch_size: int
    world: World

    @property
    def num_each(self) -> int:
        """Rows of each rank, padding included: as many as the most samples that a rank has."""
        most = -(-self.num_samples // self.world.world_size)
        return min(most, self.num_steps * self.batch_size)

    @property
    def last_size(self) -> int:
        """Rows of the last batch of each rank, padding included; 0 without any batch."""
        return self.num_each - max(self.num_steps - 1, 0) * self.batch_size

    def num_padding(self, scope: Literal["rank", "world"] = "rank") -> int:
        """Rows that fill up the last batch of this rank, or of all ranks."""
        size = self.world.world_size
        first, num = (0, size) if scope == "world" else (self.world.rank, 1)
        begin, end = (rank * self.num_samples // size for rank in (first, first + num))
        return max(num * self.num_each - (end - begin), 0)
