"""Batches as trees of arrays, for libraries that walk through trees: PyTorch, JAX and optree."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterable
from typing import Any


def _in_torch(pytree: Any, kind: type, flatten: Flatten, build: Build) -> None:
    pytree.register_pytree_node(kind, flatten, build)


def _in_jax(tree_util: Any, kind: type, flatten: Flatten, build: Build) -> None:
    tree_util.register_pytree_node(kind, flatten, lambda names, arrays: build(arrays, names))


def _in_optree(optree: Any, kind: type, flatten: Flatten, build: Build) -> None:
    # Keras and PyTorch look up types in namespaces of their own, and then in the global one.
    everywhere = optree.registry.__dict__["__GLOBAL_NAMESPACE"]
    optree.register_pytree_node(
        kind, flatten, lambda names, arrays: build(arrays, names), namespace=everywhere
    )


Flatten = Callable[[Any], tuple[tuple[Any, ...], tuple[str, ...]]]
Build = Callable[[Iterable[Any], Iterable[str]], Any]

_LIBRARIES = {
    "torch.utils._pytree": _in_torch,
    "jax.tree_util": _in_jax,
    "optree": _in_optree,
}
_known: set[tuple[type, str]] = set()
_lock = threading.Lock()


def register(kind: type, build: Build) -> None:
    """Let the libraries that are loaded by now walk through batches of a kind.

    Parameters
    ----------
    kind : type
        A class of batches.
    build : callable
        Makes a batch of arrays, or of whatever stands for them, and names.
    """
    for library, enter in _LIBRARIES.items():
        if library in sys.modules and (kind, library) not in _known:
            with _lock:
                # A library that another thread is importing takes the next batch.
                module = sys.modules[library]
                if (kind, library) not in _known and hasattr(module, "register_pytree_node"):
                    enter(module, kind, lambda batch: (tuple(batch), batch.names), build)
                    _known.add((kind, library))
