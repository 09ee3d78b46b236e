"""Shuffled training epochs over chunked n-d arrays, planned so that each chunk is read once.

This file holds the public names of the library.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

# Importing the modules registers the accessors `Dataset.xloader` and `Dataset.batch`.
from xloader import errors as errors
from xloader import xbatcher as xbatcher
from xloader.samples import accessor as accessor

if TYPE_CHECKING:
    from xloader import forcings
    from xloader.core.ranks import World
    from xloader.jobs.advice.chunk_advice import Advice, ChunkProposal
    from xloader.jobs.materialize.materialized import Materialized, MaterializedVariable
    from xloader.jobs.statistics.stats_parts import PartialStats
    from xloader.jobs.valid.sample_mask import SampleMask
    from xloader.loader.batches.batch import Batch
    from xloader.loader.interleaved.interleaved_figures import (
        InterleavedExplanation,
        InterleavedReport,
    )
    from xloader.loader.interleaved.interleaved_loader import InterleavedLoader
    from xloader.loader.loader import Loader
    from xloader.loader.reports.batch_variance import BatchVariance, VariableVariance
    from xloader.loader.reports.report import Report
    from xloader.mosaic.merged_boxes import MosaicSummary
    from xloader.mosaic.mosaic import Mosaic
    from xloader.planning.explain import Explanation
    from xloader.planning.plan_comparison import ComparedPlan, PlanComparison
    from xloader.recipe.recipe import Recipe
    from xloader.samples.class_folders import ClassSamples, open_classes
    from xloader.samples.coverage import Coverage
    from xloader.samples.dataset_stats import merge, stats
    from xloader.samples.interleave import Interleaved, interleave
    from xloader.samples.join import concat, join
    from xloader.samples.rollout import Rollout
    from xloader.samples.running_stats import RunningStats
    from xloader.samples.samples import Samples, open, overlap
    from xloader.samples.splits import Split
    from xloader.show.variable_figures import VariableFigures
    from xloader.transforms.rng import Rng
    from xloader.xbatcher.to_samples import from_xbatcher

_HOMES = {
    "Advice": "xloader.jobs.advice.chunk_advice",
    "Batch": "xloader.loader.batches.batch",
    "BatchVariance": "xloader.loader.reports.batch_variance",
    "ChunkProposal": "xloader.jobs.advice.chunk_advice",
    "ClassSamples": "xloader.samples.class_folders",
    "ComparedPlan": "xloader.planning.plan_comparison",
    "Coverage": "xloader.samples.coverage",
    "Explanation": "xloader.planning.explain",
    "Interleaved": "xloader.samples.interleave",
    "InterleavedExplanation": "xloader.loader.interleaved.interleaved_figures",
    "InterleavedLoader": "xloader.loader.interleaved.interleaved_loader",
    "InterleavedReport": "xloader.loader.interleaved.interleaved_figures",
    "Loader": "xloader.loader.loader",
    "Materialized": "xloader.jobs.materialize.materialized",
    "MaterializedVariable": "xloader.jobs.materialize.materialized",
    "Mosaic": "xloader.mosaic.mosaic",
    "MosaicSummary": "xloader.mosaic.merged_boxes",
    "PartialStats": "xloader.jobs.statistics.stats_parts",
    "PlanComparison": "xloader.planning.plan_comparison",
    "Recipe": "xloader.recipe.recipe",
    "Report": "xloader.loader.reports.report",
    "Rng": "xloader.transforms.rng",
    "Rollout": "xloader.samples.rollout",
    "RunningStats": "xloader.samples.running_stats",
    "SampleMask": "xloader.jobs.valid.sample_mask",
    "Samples": "xloader.samples.samples",
    "Split": "xloader.samples.splits",
    "VariableFigures": "xloader.show.variable_figures",
    "VariableVariance": "xloader.loader.reports.batch_variance",
    "World": "xloader.core.ranks",
    "concat": "xloader.samples.join",
    "from_xbatcher": "xloader.xbatcher.to_samples",
    "interleave": "xloader.samples.interleave",
    "join": "xloader.samples.join",
    "merge": "xloader.samples.dataset_stats",
    "open": "xloader.samples.samples",
    "open_classes": "xloader.samples.class_folders",
    "overlap": "xloader.samples.samples",
    "stats": "xloader.samples.dataset_stats",
}
"""The modules of the public names, which are imported when a name is first used."""

__all__ = [
    "Advice",
    "Batch",
    "BatchVariance",
    "ChunkProposal",
    "ClassSamples",
    "ComparedPlan",
    "Coverage",
    "Explanation",
    "Interleaved",
    "InterleavedExplanation",
    "InterleavedLoader",
    "InterleavedReport",
    "Loader",
    "Materialized",
    "MaterializedVariable",
    "Mosaic",
    "MosaicSummary",
    "PartialStats",
    "PlanComparison",
    "Recipe",
    "Report",
    "Rng",
    "Rollout",
    "RunningStats",
    "SampleMask",
    "Samples",
    "Split",
    "VariableFigures",
    "VariableVariance",
    "World",
    "__version__",
    "concat",
    "errors",
    "forcings",
    "from_xbatcher",
    "interleave",
    "join",
    "merge",
    "open",
    "open_classes",
    "overlap",
    "stats",
]


def __dir__() -> list[str]:
    # Tab completion must offer the public names only, and not the submodules.
    return list(__all__)


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(importlib.import_module(_HOMES[name]), name)
    # PyTorch and dask are imported by the last two.
    if name in ("forcings", "dask", "torch"):
        return importlib.import_module(f"xloader.{name}")
    # The version is looked up late: reading the metadata takes longer than the rest of the import.
    if name == "__version__":
        from importlib.metadata import version

        return version("xloader")
    raise AttributeError(f"module 'xloader' has no attribute {name!r}")
