"""Several sets of samples with the same fields, which take turns in an epoch."""

from __future__ import annotations

from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cached_property

import numpy as np

from xloader.core.options import LoaderOptions
from xloader.core.subset import Subset
from xloader.errors import EmptySamplesError, OptionError
from xloader.order.quota_pattern import QuotaPattern
from xloader.recipe.recipe import Recipe, Slab
from xloader.transforms.outputs import Output


@dataclass(frozen=True)
class Interleaving:
    """How many rows of which set are in which step of an epoch."""

    pattern: QuotaPattern
    sizes: tuple[int, ...]
    world_size: int
    lanes: int
    dealers: int
    batch_size: int
    drop_last: bool = False
    num_samples: int | None = None

    @property
    def dealer_lanes(self) -> int:
        """Number of lanes of a dealer."""
        return self.lanes // self.dealers

    @property
    def rank_dealers(self) -> int:
        """Number of dealers of a rank."""
        return self.dealers // self.world_size

    @property
    def step_rows(self) -> int:
        """Number of rows of a dealer in a full step."""
        return self.batch_size // self.rank_dealers

    @cached_property
    def num_rows(self) -> int:
        """Number of rows of an epoch of one dealer."""
        if self.num_samples is not None:
            num_rows = self.num_samples // self.dealers
        else:
            # The lanes of a set have equally many samples, give or take one.
            most = [self.dealer_lanes * (size // self.lanes) for size in self.sizes]
            num_rows = self.pattern.num_rows(most)
        return num_rows - num_rows % self.step_rows if self.drop_last else num_rows

    @property
    def num_steps(self) -> int:
        """Number of steps that every rank takes in an epoch."""
        return -(-self.num_rows // self.step_rows)

    def rows_before(self, step: int) -> int:
        """Number of rows of a dealer before a step."""
        return min(step * self.step_rows, self.num_rows)

    def counts(self, step: int) -> tuple[int, ...]:
        """How many rows of a dealer each set gives before a step."""
        return self.pattern.counts(self.rows_before(step))

    def done(self, given: int, lane: int) -> int:
        """How many rows a lane has given of those that a set has given to the lane's dealer."""
        place = lane % self.dealer_lanes
        return (given - place + self.dealer_lanes - 1) // self.dealer_lanes

    @cached_property
    def lane_rows(self) -> tuple[int, ...]:
        """How many rows of an epoch each set makes in each of its lanes."""
        return tuple(self.done(given, 0) for given in self.counts(self.num_steps))

    @property
    def taken(self) -> tuple[int, ...]:
        """How many rows of an epoch each set gives, on all ranks."""
        return tuple(self.dealers * given for given in self.counts(self.num_steps))

    def share(self, index: int) -> int:
        """Number of rows of each lane in a batch of a set's own loader.

        It is about what a step needs of the set, so that no more is made ahead for one set than
        for another.
        """
        rows = self.step_rows * self.pattern.weights[index]
        return -(-rows // (self.pattern.period * self.dealer_lanes))

    def begin(self, index: int, step: int) -> int | None:
        """The batch of a set's own loader in which its first row from a step on lies.

        Number of the batch; None if the set has given all its rows.
        """
        given = self.counts(step)[index]
        if given == self.counts(self.num_steps)[index]:
            return None
        # The lane that comes last in its turn has given the fewest rows.
        return given // self.dealer_lanes // self.share(index)


def num_samples_of(recipe: Recipe) -> int:
    """Number of samples of an epoch of a recipe."""
    if recipe.num_taken is not None:
        return recipe.num_taken
    return len(recipe.require_windows()) if recipe.subset is None else recipe.subset.num_samples


def taking(recipe: Recipe, num_samples: int) -> Recipe:
    """The recipe of which an epoch takes so many samples.

    Fewer than there are become successive parts of one pass, as in `xloader.planning.passes`:
    nothing is listed, so this costs no memory. More than there are are drawn: each sample occurs
    ``floor`` or ``ceil`` of its share.
    """
    if recipe.slab is not None:
        # The changes are not of the selection nor of transforms, so the cut is the same.
        whole = taking(recipe.slab.whole, num_samples)
        slab = Slab(whole, recipe.slab.dim, recipe.slab.part)
        return replace(recipe, subset=whole.subset, num_taken=whole.num_taken, slab=slab)
    num_own = num_samples_of(recipe)
    if num_samples == num_own:
        return recipe
    subset = recipe.subset or Subset(len(recipe.require_windows()))
    if subset.weights is not None:
        return replace(recipe, subset=replace(subset, num_draws=num_samples))
    if num_samples < num_own:
        return replace(recipe, num_taken=num_samples)
    if subset.draws is not None:
        raise OptionError(
            "a set of random windows has fewer samples than the epoch takes of it",
            given=f"{num_own:,} of {num_samples:,} samples",
            remedy="pass a larger n to .random, or a smaller num_samples= to interleave",
        )
    weights = np.ones(len(subset))
    return replace(recipe, subset=replace(subset, weights=weights, num_draws=num_samples))


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
        return tuple(member.name for member in self.sets)

    @property
    def weights(self) -> dict[str, Fraction]:
        """Proportions of the rows by name of the set."""
        return {member.name: member.weight for member in self.sets}

    @property
    def sizes(self) -> tuple[int, ...]:
        """Number of samples that each set has for an epoch."""
        return tuple(num_samples_of(member.recipe) for member in self.sets)

    def settle(self, options: LoaderOptions) -> Interleaving:
        """The rows that each set gives to an epoch, for the ranks of some options."""
        lanes, ranks = options.num_lanes, options.ranks.world_size
        interleaving = Interleaving(
            self.pattern,
            self.sizes,
            ranks,
            lanes,
            lanes if options.plan.lanes else ranks,
            options.batch_size,
            options.drop_last,
            self.num_samples,
        )
        for member, rows, size in zip(self.sets, interleaving.lane_rows, self.sizes, strict=True):
            if not rows:
                raise EmptySamplesError(
                    f"an epoch has no row of the set {member.name!r}",
                    given=f"weight {float(member.weight):.4g} of the rows, {size:,} samples, "
                    f"epochs of {interleaving.num_rows:,} rows on each of {interleaving.dealers} "
                    "ranks or lanes" + ", drop_last=True" * options.drop_last,
                    remedy="leave the set out, or give it more weight; or pass more samples of "
                    "the set that limits the epoch, or a smaller batch_size=",
                )
        return interleaving
