"""Scores: a number for each sample, computed by a function of batches, each chunk read once."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from types import CodeType, FunctionType, ModuleType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from xloader.cluster.cluster_tasks import code_digest, find_cluster
from xloader.core.nbytes import parse_nbytes
from xloader.errors import OptionError, TransformError, XloaderError
from xloader.jobs.valid.batch_sweep import BatchSweep
from xloader.jobs.valid.cache_files import Cache, CacheFile, cache_file
from xloader.loader.batches.batch import Batch
from xloader.recipe.recipe import Recipe

ScoreFunction = Callable[[Batch], Any]
"""A function of a batch of NumPy arrays, which returns a number for each of its samples."""


def score_samples(
    recipe: Recipe,
    fn: ScoreFunction,
    *,
    memory: int | str = "2GiB",
    threads: int | None = None,
    batch_size: int | None = None,
    cache: Cache = None,
    client: Any = None,
) -> NDArray[np.float64]:
    """Compute a number for each sample, in an order that reads each chunk once."""
    recipe.require_windows()
    if not callable(fn):
        raise OptionError(
            "score needs a function",
            given=repr(fn),
            remedy="pass a function of a Batch that returns a number for each sample, such as "
            'lambda batch: batch["rain"].mean(axis=(1, 2, 3))',
        )
    # All ranks of a group must get the same numbers, so the whole of a slab counts.
    recipe = _each_once(recipe.planned)
    file = _file_of(recipe, fn, cache)
    data = None if file is None else file.load(8 * recipe.num_ids)
    if data is not None:
        return np.frombuffer(data, "<f8").astype(np.float64)
    scores = np.full(recipe.num_ids, np.nan)
    tasks = find_cluster(client, recipe, beside=fn)
    sweep = BatchSweep(recipe, partial(_call, fn), parse_nbytes(memory), batch_size)
    sweep.fill(scores, threads, tasks)
    if file is not None:
        file.save(scores.astype("<f8").tobytes())
    return scores


def _each_once(recipe: Recipe) -> Recipe:
    """The recipe with each id once in an epoch, however epochs draw."""
    return recipe if recipe.subset is None else replace(recipe, subset=recipe.subset.undrawn)


def _call(fn: ScoreFunction, batch: Batch) -> NDArray[np.float64]:
    try:
        given = fn(batch)
    except XloaderError:
        raise
    except Exception as error:
        raise TransformError(
            f"the function of score failed: {type(error).__name__}: {error}",
            given=f"a batch of {len(batch.ids)} samples, of which the first has id {batch.ids[0]}",
            remedy="call it on samples[:2] to find the fault",
        ) from error
    scores = np.asarray(given)
    if scores.shape != (len(batch.ids),) or scores.dtype.kind not in "biuf":
        raise OptionError(
            "the function of score does not return a number for each sample",
            given=f"{scores.dtype} of shape {scores.shape} for {len(batch.ids)} samples",
            remedy="reduce over all axes but the first, for example .mean(axis=(1, 2, 3))",
        )
    return scores.astype(np.float64)


def _file_of(recipe: Recipe, fn: ScoreFunction, cache: Cache) -> CacheFile | None:
    """The file of the scores; None if they are not to be kept."""
    # Even a file that must not be used is asked for, because that checks ``cache``.
    names = {name for field in recipe.gathered_fields for name in field.variables}
    key = _digest_of(fn)
    file = cache_file(recipe, "scores", cache, names, key)
    # Nothing shows whether other callables, or the functions of transforms, have changed.
    return None if key is None or (cache is None and recipe.is_mapped) else file


def _digest_of(fn: object) -> str | None:
    """A hash of the code of a plain function; None if more than its code fixes what it does."""
    if not isinstance(fn, FunctionType) or fn.__closure__ or fn.__defaults__ or fn.__kwdefaults__:
        return None
    names = {name for code in _codes_of(fn.__code__) for name in code.co_names}
    if any(not isinstance(fn.__globals__.get(name, np), ModuleType) for name in names):
        # A number or a function of the user's may change without a trace in the code.
        return None
    return code_digest(fn.__code__)


def _codes_of(code: CodeType) -> Iterator[CodeType]:
    """The code of a function, and of all functions within it."""
    yield code
    for part in code.co_consts:
        if isinstance(part, CodeType):
            yield from _codes_of(part)
