"""As on a machine without a C compiler."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from unittest import mock

from xloader.compiled import library
from xloader.engine import field_places


@contextmanager
def without_library() -> Iterator[None]:
    """Nothing is compiled: the plain executor makes the batches, with NumPy."""
    # What the library has made is freed by it.
    gc.collect()
    load = mock.Mock(return_value=(None, "it is a test"))
    with (
        mock.patch.object(library, "load_library", load),
        mock.patch.object(field_places, "load_library", load),
    ):
        yield
