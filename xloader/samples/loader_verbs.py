"""The methods of `Samples` that make batches: `loader`, `explain` and `compare_plans`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike

from xloader.core.nans import OnNan, check_on_nan
from xloader.core.nbytes import parse_nbytes
from xloader.core.option_checks import MOST, check_choice, check_whole, is_number
from xloader.core.options import (
    LoaderKeywords,
    LoaderOptions,
    PlanRules,
    make_options,
    refuse_unknown,
)
from xloader.core.ranks import World
from xloader.errors import MemoryBudgetError, OptionError
from xloader.loader.planned_loader import PlannedLoader
from xloader.loader.ranks.rank_resolver import with_memory
from xloader.loader.reports.explain_notes import memory_note, with_notes
from xloader.planning.make_plan import most_rows
from xloader.recipe.demands import make_footprint
from xloader.recipe.layout import make_layouts
from xloader.recipe.recipe import Recipe
from xloader.samples.single_samples import normal_ids
from xloader.transforms.outputs import make_outputs

if TYPE_CHECKING:
    from xloader.planning.explain import Explanation
    from xloader.planning.plan_comparison import PlanComparison


_USUAL_BOUNDS = (1.05, 2.0, 4.0)
"""Reads a chunk that plans are compared for, unless the user says otherwise."""


def make_loader(recipe: Recipe, options: LoaderOptions) -> PlannedLoader:
    """A loader of a recipe's samples; see `Samples.loader`."""
    loader = _loader(recipe, options)
    # A function that fails on every batch fails here, and not at the first batch.
    outputs = make_outputs(recipe, make_layouts(recipe))
    if loader.device_path is not None:
        loader.device_path.check_outputs(outputs, most_rows(loader.footprint, options))
    return loader


def make_array_loader(recipe: Recipe, options: LoaderOptions) -> PlannedLoader:
    """A loader whose batches stay arrays, whatever the output, for other code to hand over."""
    make_outputs(recipe, make_layouts(recipe))
    return PlannedLoader(recipe, options, np.asarray)


def composers(
    options: LoaderOptions, dtypes: Mapping[str, np.dtype]
) -> tuple[Callable[[Any], Any], Callable[[Sequence[Any]], Any] | None]:
    """The functions that hand over arrays of batches, and that join batches on a device.

    The second is None if batches stay in ordinary memory.
    """
    if options.output == "numpy":
        return np.asarray, None
    from xloader.tensors.convert import cupy_maker, jax_maker, join_tensors, tensor_maker

    match options.output:
        case "cupy":
            return cupy_maker(), None
        case "jax":
            return jax_maker(dtypes), None
    return tensor_maker(), None if options.on_device.device is None else join_tensors


def explain(
    recipe: Recipe, order: ArrayLike | None, cache: Any, num_workers: int, options: LoaderKeywords
) -> Explanation:
    """Predict what an epoch, or an order of the user's own, costs; see `Samples.explain`."""
    remedy = 'pass cache="lru", which drops the least recently used chunk first'
    check_choice("cache", cache, (None, "lru"), remedy)
    check_whole("num_workers", num_workers, 0, MOST)
    if cache is None and num_workers != 1:
        # The error names the option to use instead.
        refuse_unknown({"num_workers": num_workers})
    loader_options: LoaderKeywords = {"output": "numpy", **options}
    chosen = make_options(**loader_options)
    if cache is not None and order is None:
        raise OptionError(
            "a cache is simulated only for an order that you pass",
            given=f"cache={cache!r} without order=",
            remedy="pass order=, such as list(sampler), or leave cache out",
        )
    if order is None:
        return _loader(recipe, chosen).explain()
    from xloader.planning.explain_order import explain_cached, explain_order

    ids = normal_ids(recipe.num_ids, np.asarray(order))
    layouts, output_dtype = make_layouts(recipe), chosen.on_device.dtype
    if cache is None:
        loader = _loader(recipe, chosen)
        explanation = explain_order(loader.footprint, loader.plan, ids, loader.explain())
    else:
        # Workers read the order through caches, batch by batch.
        footprint = make_footprint(recipe, layouts)
        explanation = explain_cached(
            footprint,
            layouts,
            ids,
            {name: recipe.source.path_of(name) for name in footprint.variables},
            memory_nbytes=with_memory(chosen).memory_nbytes,
            batch_size=chosen.batch_size,
            prefetch=chosen.prefetch,
            num_workers=max(num_workers, 1),
        )
    return with_notes(explanation, recipe, layouts, output_dtype, memory_note(chosen))


def compare_plans(
    recipe: Recipe,
    memory: Sequence[int | str] | int | str,
    max_amplification: Sequence[float] | float | None,
    options: Mapping[str, Any],
) -> PlanComparison:
    """Plan for several memories and bounds of amplification; see `Samples.compare_plans`."""
    from xloader.planning.plan_comparison import ComparedPlan, PlanComparison, mark_front

    given = make_options(**{"output": "numpy", **options})
    sizes = [memory] if isinstance(memory, int | str) else list(memory)
    bound, usual = given.plan.max_amplification, PlanRules.max_amplification
    bounds: Any = max_amplification
    if bounds is None:
        bounds = _USUAL_BOUNDS if bound == usual else bound
    bounds = [bounds] if is_number(bounds) else [*bounds]
    for name, values in (("memory", sizes), ("max_amplification", bounds)):
        if not values:
            raise OptionError(
                f"there is no {name} to plan for",
                given=f"{name}=[]",
                remedy=f"pass one value or more, or leave {name}= out for the usual ones",
            )
    if bound not in (usual, *bounds):
        raise OptionError(
            "the plan has another bound of amplification than those to plan for",
            given=f"plan=PlanRules(max_amplification={bound:g}), max_amplification={bounds}",
            remedy="give it in one of the two",
        )
    plans = []
    for nbytes in sorted({with_memory(replace(given, memory=m)).memory_nbytes for m in sizes}):
        for most in dict.fromkeys(bounds):
            rules = replace(given.plan, max_amplification=most)
            chosen = replace(given, memory=nbytes, plan=rules)
            try:
                loader = _loader(recipe, chosen)
                loader.set_epoch(loader.plan.typical_epoch)
                cost = loader.explain()
            except MemoryBudgetError as error:
                plans.append(ComparedPlan(nbytes, most, None, error.minimum_nbytes))
            else:
                plans.append(ComparedPlan(nbytes, most, cost))
    return PlanComparison(mark_front(plans))


def whole_loader(recipe: Recipe, memory: int | str, on_nan: OnNan) -> PlannedLoader:
    """A loader of all samples in ascending order, to copy them all into memory.

    The loader gets the memory that is left beside the copy of all samples.
    """
    memory_nbytes, on_nan = parse_nbytes(memory), check_on_nan(on_nan)
    if recipe.subset is not None and recipe.subset.is_drawn:
        raise OptionError(
            "drawn samples cannot become a dataset in memory, which holds each sample once",
            remedy="call it before .weighted or .random, and draw with a sampler of torch",
        )
    outputs = make_outputs(recipe, make_layouts(recipe))
    sample_nbytes = sum(out.nbytes for out in outputs)
    whole_nbytes = recipe.num_ids * sample_nbytes
    left = max(memory_nbytes - whole_nbytes, 1)
    rows = min(max(left // (16 * max(sample_nbytes, 1)), 1), 256)
    options = LoaderOptions(
        batch_size=rows,
        memory=left,
        shuffle=False,
        output="numpy",
        world=World(),
        on_nan=on_nan,
    )
    try:
        return make_loader(recipe, options)
    except MemoryBudgetError as error:
        raise MemoryBudgetError(
            "the samples and the buffers for reading them do not fit in memory",
            given=f"memory={memory_nbytes}, {recipe.num_ids} samples of {sample_nbytes} bytes",
            minimum_nbytes=whole_nbytes + error.minimum_nbytes,
            remedy=".select fewer samples, or iterate over .loader(...), which holds only a few "
            "chunks in memory",
        ) from error


def _loader(recipe: Recipe, options: LoaderOptions) -> PlannedLoader:
    outputs = make_outputs(recipe, make_layouts(recipe)) if options.output == "jax" else ()
    hand_over, _ = composers(options, {out.name: out.dtype for out in outputs})
    if options.output != "torch":
        return PlannedLoader(recipe, options, hand_over)
    # Imported here, because its module imports PyTorch.
    from xloader.device.transfer import make_transfer

    transfer = make_transfer(recipe, options, hand_over)
    packed = () if transfer is None else transfer.packed_fields
    return PlannedLoader(recipe, options, hand_over, packed, transfer)
