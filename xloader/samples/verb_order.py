"""The order in which verbs may follow each other."""

from __future__ import annotations

from xloader.errors import OptionError
from xloader.recipe.recipe import Recipe
from xloader.samples import describe


def require_before(recipe: Recipe, verb: str, is_too_late: bool) -> None:
    """Refuse a verb that comes too late.

    Parameters
    ----------
    recipe : Recipe
        The samples.
    verb : str
        Name of the verb.
    is_too_late : bool
        Whether it comes too late.

    Raises
    ------
    OptionError
        If it does. The error gives the order of verbs.
    """
    if is_too_late:
        raise OptionError(
            f"{verb} comes too late",
            given=f"after {describe.last_verb(recipe)}",
            allowed="first sel, isel and forcing, then window once, then inputs, targets and "
            "field, at_points, normalize and fillna, then map and recorded methods",
            remedy=f"call .{verb}(...) earlier in the chain",
        )
