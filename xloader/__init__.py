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
    from xloader import forcings as forcings
    from xloader.core.ranks import World as World
    from xloader.jobs.advice.chunk_advice import Advice as Advice
    from xloader.jobs.advice.chunk_advice import ChunkProposal as ChunkProposal
    from xloader.jobs.materialize.materialized import Materialized as Materialized
    from xloader.jobs.materialize.materialized import MaterializedVariable as MaterializedVariable
    from xloader.jobs.statistics.stats_parts import PartialStats as PartialStats
    from xloader.jobs.valid.sample_mask import SampleMask as SampleMask
    from xloader.loader.batches.batch import Batch as Batch
    from xloader.loader.interleaved.interleaved_figures import (
        InterleavedExplanation as InterleavedExplanation,
    )
    from xloader.loader.interleaved.interleaved_figures import (
        InterleavedReport as InterleavedReport,
    )
    from xloader.loader.interleaved.interleaved_loader import InterleavedLoader as InterleavedLoader
    from xloader.loader.loader import Loader as Loader
    from xloader.loader.reports.batch_variance import BatchVariance as BatchVariance
    from xloader.loader.reports.batch_variance import VariableVariance as VariableVariance
    from xloader.loader.reports.report import Report as Report
    from xloader.mosaic.merged_boxes import MosaicSummary as MosaicSummary
    from xloader.mosaic.mosaic import Mosaic as Mosaic
    from xloader.planning.explain import Explanation as Explanation
    from xloader.planning.plan_comparison import ComparedPlan as ComparedPlan
    from xloader.planning.plan_comparison import PlanComparison as PlanComparison
    from xloader.recipe.recipe import Recipe as Recipe
    from xloader.samples.class_folders import ClassSamples as ClassSamples
    from xloader.samples.class_folders import open_classes as open_classes
    from xloader.samples.coverage import Coverage as Coverage
    from xloader.samples.dataset_stats import merge as merge
    from xloader.samples.dataset_stats import stats as stats
    from xloader.samples.interleave import Interleaved as Interleaved
    from xloader.samples.interleave import interleave as interleave
    from xloader.samples.join import concat as concat
    from xloader.samples.join import join as join
    from xloader.samples.rollout import Rollout as Rollout
    from xloader.samples.running_stats import RunningStats as RunningStats
    from xloader.samples.samples import Samples as Samples
    from xloader.samples.samples import open as open
    from xloader.samples.samples import overlap as overlap
    from xloader.samples.splits import Split as Split
    from xloader.show.cost_figures import VariableFigures as VariableFigures
    from xloader.transforms.rng import Rng as Rng
    from xloader.xbatcher.to_samples import from_xbatcher as from_xbatcher

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
    "VariableFigures": "xloader.show.cost_figures",
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

__all__ = sorted([*_HOMES, "__version__", "errors", "forcings"])


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
