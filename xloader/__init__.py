"""Shuffled training epochs over chunked n-d arrays, planned so that each chunk is read once.

This file holds the public names of the library.
"""

from __future__ import annotations

import importlib
from typing import Any

from xloader import errors, forcings
from xloader.core.ranks import World
from xloader.jobs.advice.chunk_advice import Advice, ChunkProposal
from xloader.jobs.materialize.materialized import Materialized, MaterializedVariable
from xloader.jobs.statistics.stats_parts import PartialStats
from xloader.jobs.valid.sample_mask import SampleMask
from xloader.loader.batches.batch import Batch
from xloader.loader.interleaved.interleaved_figures import InterleavedExplanation, InterleavedReport
from xloader.loader.interleaved.interleaved_loader import InterleavedLoader
from xloader.loader.loader import Loader
from xloader.loader.reports.batch_variance import BatchVariance, VariableVariance
from xloader.loader.reports.report import Report
from xloader.mosaic.merged_boxes import MosaicSummary
from xloader.mosaic.mosaic import Mosaic
from xloader.planning.explain import Explanation
from xloader.planning.plan_comparison import ComparedPlan, PlanComparison
from xloader.recipe.recipe import Recipe

# Importing the module registers the accessor `Dataset.xloader`; nothing else is needed.
from xloader.samples import accessor as accessor
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
    # These are imported on first use, because they are for PyTorch and for dask.
    if name in ("dask", "torch"):
        return importlib.import_module(f"xloader.{name}")
    # The version is looked up late: reading the metadata takes longer than the rest of the import.
    if name == "__version__":
        from importlib.metadata import version

        return version("xloader")
    raise AttributeError(f"module 'xloader' has no attribute {name!r}")
