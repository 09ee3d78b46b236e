"""Sources that users pass to be opened together: whatever `open` takes, or samples of them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from xloader.core.retry_policy import RetryPolicy
from xloader.errors import OptionError
from xloader.recipe.recipe import Recipe, find
from xloader.samples.describe import last_verb
from xloader.sources.arrays.catalog import chosen_names
from xloader.sources.base import Source
from xloader.sources.combined.join_sources import merge_sources
from xloader.sources.combined.mixed_source import SourceView, one_source


def whole_source(value: Any, name: str, open_one: Callable[[Any], Source]) -> Source:
    """The source of something that is opened together with others."""
    if isinstance(value, list | tuple):
        return merged_source(value, None, open_one)
    recipe = recipe_of(value)
    if recipe is None:
        return open_one(value)
    if recipe.windows is not None or recipe.fields or recipe.steps:
        raise OptionError(
            f"the samples {name} have windows, fields or transforms already",
            given=f"last recorded: {last_verb(recipe)}",
            remedy="join first, then call .window and all that follows on the joined samples",
        )
    if not recipe.selection and recipe.variables == tuple(recipe.source.variables):
        return recipe.source
    kept: Mapping[str, Any] = dict(recipe.selection)
    return one_source([SourceView(recipe.source, {v: v for v in recipe.variables}, kept)])


def recipe_of(value: Any) -> Recipe | None:
    """The recipe of samples; None for anything else."""
    recipe = getattr(value, "recipe", None)
    return recipe if isinstance(recipe, Recipe) else None


def longest_policy(values: Iterable[Any], policy: RetryPolicy | None = None) -> RetryPolicy:
    """The most patient of the retry policies of samples, and of another one."""
    policies = [recipe.retry_policy for recipe in map(recipe_of, values) if recipe is not None]
    policies += [] if policy is None else [policy]
    if not policies:
        return RetryPolicy()
    return RetryPolicy(max(p.read_timeout for p in policies), max(p.max_retries for p in policies))


def merged_source(
    values: Sequence[Any], variables: Iterable[str] | str | None, open_one: Callable[[Any], Source]
) -> Source:
    """Open several stores of different variables on one grid as one source."""
    if not values:
        raise OptionError(
            "there is nothing to open",
            given="an empty list",
            remedy="pass paths, stores or Datasets",
        )
    sources = [
        whole_source(value, f"number {number} of {len(values)}", open_one)
        for number, value in enumerate(values, 1)
    ]
    names: tuple[str, ...] = ()
    if variables is not None:
        there = list(dict.fromkeys(name for source in sources for name in source.variables))
        names = chosen_names(variables, there)
        for name in names:
            find(name, there, "variable")
        # Each with those of its variables that are named, in the order of the names.
        kept = [{v: v for v in names if v in source.variables} for source in sources]
        pairs = zip(sources, kept, strict=True)
        sources = [one_source([SourceView(source, taken)]) for source, taken in pairs if taken]
    return sources[0] if len(sources) == 1 else merge_sources(sources, names)
