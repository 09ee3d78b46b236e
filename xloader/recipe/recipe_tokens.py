"""Tokens by which a process finds a recipe that it holds, so that batches need not carry it.

A batch that a worker sends to the training process refers to its recipe by a token of a few bytes.
The recipes of a process are kept here by weak references, so none lives longer for that.
"""

from __future__ import annotations

import uuid
from typing import Any, Protocol
from weakref import WeakValueDictionary


class HasToken(Protocol):
    """A recipe, as far as it is found by its token."""

    @property
    def token(self) -> str:
        """The token."""
        ...


_known: WeakValueDictionary[int, HasToken] = WeakValueDictionary()


def new_token() -> str:
    """A token that no other recipe has, in any process."""
    return uuid.uuid4().hex


def remember(recipe: HasToken) -> None:
    """Let this process find a recipe by its token, as long as the recipe lives."""
    _known[id(recipe)] = recipe


def recall(token: str) -> Any:
    """Find a recipe by its token.

    One with this token; None if this process holds none.
    """
    # The list of references is made in one step, as other threads may make recipes meanwhile.
    for reference in _known.valuerefs():
        recipe = reference()
        if recipe is not None and recipe.token == token:
            return recipe
    return None
