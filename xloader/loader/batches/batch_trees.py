"""Batches as trees of arrays, for libraries that walk through trees: PyTorch, JAX and optree."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any


def _in_torch(pytree: Any, kind: type[Any]) -> None:
    def with_keys(batch: Any) -> Any:
        return _keyed(batch, pytree.GetAttrKey), batch.names

    pytree.register_pytree_node(
        kind, _parts, lambda arrays, _: kind(arrays), flatten_with_keys_fn=with_keys
    )


def _in_jax(tree_util: Any, kind: type[Any]) -> None:
    def with_keys(batch: Any) -> Any:
        return _keyed(batch, tree_util.GetAttrKey), batch.names

    tree_util.register_pytree_with_keys(kind, with_keys, lambda _, arrays: kind(arrays), _parts)


def _in_optree(optree: Any, kind: type[Any]) -> None:
    # Keras and PyTorch look up types in namespaces of their own, and then in the global one.
    everywhere = getattr(optree.registry, "__GLOBAL_NAMESPACE", "keras")
    optree.register_pytree_node(kind, _parts, lambda _, arrays: kind(arrays), namespace=everywhere)


def _parts(batch: Any) -> tuple[tuple[Any, ...], tuple[str, ...]]:
    return tuple(batch), batch.names


def _keyed(batch: Any, key: Callable[[str], Any]) -> list[tuple[Any, Any]]:
    """The arrays, each with a key of its name, by which errors of a library call it."""
    return [(key(name), array) for name, array in zip(batch.names, batch, strict=True)]


_LIBRARIES = {
    "torch.utils._pytree": _in_torch,
    "jax.tree_util": _in_jax,
    "optree": _in_optree,
}
_entries: dict[tuple[type, str], object] = {}
"""Who has entered a class of batches in a library, or is about to."""


def register(kind: type[Any]) -> None:
    """Let the libraries that are loaded by now walk through batches of a kind."""
    for library, enter in _LIBRARIES.items():
        if library in sys.modules and (kind, library) not in _entries:
            module, own = sys.modules[library], object()
            # A library that another thread is importing takes the next batch.
            is_ready = hasattr(module, "register_pytree_node")
            # Of two threads, one enters it. No lock, as a fork might copy it while it is held.
            if is_ready and _entries.setdefault((kind, library), own) is own:
                enter(module, kind)
