"""Tokens by which a process finds a recipe that it holds, so that batches need not carry it.

A batch that a worker sends to the training process refers to its recipe by a token of a few bytes.
The recipes of a process are kept here by weak references, so none lives longer for that.
"""

from __future__ import annotations

import uuid
from typing import Any
from weakref import WeakValueDictionary

_known: WeakValueDictionary[tuple[str, int], Any] = WeakValueDictionary()


def new_token() -> str:
    """A token that no other recipe has, in any process."""
    return uuid.uuid4().hex


def remember(token: str, recipe: object) -> None:
    """Let this process find a recipe by a token, as long as the recipe lives.

    Parameters
    ----------
    token : str
        The token.
    recipe : Recipe
        The recipe. Several recipes may have one token, as copies of a recipe do.
    """
    _known[token, id(recipe)] = recipe


def recall(token: str) -> Any:
    """Find a recipe by its token.

    Parameters
    ----------
    token : str
        The token.

    Returns
    -------
    Recipe or None
        One with this token; None if this process holds none.
    """
    # A list, because other threads may make and drop recipes meanwhile.
    return next((recipe for (own, _), recipe in list(_known.items()) if own == token), None)
