"""Several sets of samples with the same fields, which take turns in an epoch."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

from xloader.core.options import LoaderOptions
from xloader.errors import EmptySamplesError
from xloader.order.quota_pattern import QuotaPattern
from xloader.planning.interleaving import Interleaving
from xloader.recipe.recipe import Recipe
from xloader.recipe.taken_samples import num_samples_of
from xloader.transforms.outputs import Output


@dataclass(frozen=True)
class SampleSet:
    """One of several sets of samples that take turns."""

    name: str
    recipe: Recipe
    weight: Fraction


@dataclass(frozen=True)
class SampleSets:
    """Several sets of the same fields, and how many rows an epoch has."""

    sets: tuple[SampleSet, ...]
    outputs: tuple[Output, ...]
    num_samples: int | None
    pattern: QuotaPattern

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the sets."""
        return tuple(own.name for own in self.sets)

    @property
    def weights(self) -> dict[str, Fraction]:
        """Proportions of the rows by name of the set."""
        return {own.name: own.weight for own in self.sets}

    @property
    def sizes(self) -> tuple[int, ...]:
        """Number of samples that each set has for an epoch."""
        return tuple(num_samples_of(own.recipe) for own in self.sets)

    def settle(self, options: LoaderOptions) -> Interleaving:
        """The rows that each set gives to an epoch, for the ranks of some options."""
        lanes, ranks = options.num_lanes, options.world.world_size
        told = Interleaving(
            self.pattern,
            self.sizes,
            ranks,
            lanes,
            lanes if options.lanes else ranks,
            options.batch_size,
            options.drop_last,
            self.num_samples,
        )
        for own, rows, size in zip(self.sets, told.lane_rows, self.sizes, strict=True):
            if not rows:
                raise EmptySamplesError(
                    f"an epoch has no row of the set {own.name!r}",
                    given=f"weight {float(own.weight):.4g} of the rows, {size:,} samples, epochs "
                    f"of {told.num_rows:,} rows on each of {told.dealers} ranks or lanes"
                    + ", drop_last=True"
                    * options.drop_last,
                    allowed="at least one row of each set",
                    remedy="leave the set out, or give it more weight; or pass more samples of "
                    "the set that limits the epoch, or a smaller batch_size=",
                )
        return told
