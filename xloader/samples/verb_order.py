"""The order in which verbs may follow each other."""

from __future__ import annotations

from xloader.errors import OptionError
from xloader.recipe.recipe import Recipe
from xloader.samples import describe


def require_before(recipe: Recipe, verb: str, is_too_late: bool) -> None:
    """Refuse a verb that comes too late."""
    if is_too_late:
        raise OptionError(
            f"{verb} comes too late",
            given=f"after {describe.last_verb(recipe)}",
            allowed="first sel, isel and forcing, then window once, then inputs, targets and "
            "field, at_points, normalize and fillna, then map and recorded methods",
            remedy=f"call .{verb}(...) earlier in the chain",
        )


def require_windows_before(recipe: Recipe, verb: str) -> None:
    """Refuse a transform that is recorded before there are windows."""
    if recipe.windows is None:
        raise OptionError(
            f"{verb} comes too early",
            given="samples without windows",
            allowed="after .window(...), since transforms change batches of windows",
            remedy="call .window(...) first; or change the data with xarray, and open the Dataset",
        )
