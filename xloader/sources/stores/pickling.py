"""Pickling of data that is sent to other processes.

If something does not pickle, the error names it and says what to do.
"""

from __future__ import annotations

import pickle
from typing import Any, Final

import cloudpickle

from xloader.core.messages import warn_caller
from xloader.errors import CopiesWarning, UnsupportedDataError, XloaderError

MOST_QUIET_NBYTES: Final = 64 * 2**20
"""64 MiB. A warning is raised if more data than this is copied into every process."""


def pack(value: object, name: str, remedy: str) -> bytes:
    """Pickle a value into bytes, with an error that names the value if that fails."""
    try:
        data = pickle.dumps(value, pickle.HIGHEST_PROTOCOL)
    except XloaderError:
        raise
    except Exception:
        data = _pack_by_value(value, name, remedy)
    if len(data) > MOST_QUIET_NBYTES:
        warn_caller(
            f"{name} is in memory: {len(data) / 2**20:.0f} MiB are copied to each process that "
            "receives it. Write it to disk and open it from there.",
            CopiesWarning,
        )
    return data


def _pack_by_value(value: object, name: str, remedy: str) -> bytes:
    """Pickle a value with cloudpickle, or raise an error that names its class."""
    try:
        return bytes(cloudpickle.dumps(value, pickle.HIGHEST_PROTOCOL))
    except XloaderError:
        raise
    except Exception as error:
        kind = type(value)
        bases = [base.__name__ for base in kind.__mro__[1:-1] if base.__module__ != "abc"]
        of = f" (a kind of {bases[0]})" if bases else ""
        raise UnsupportedDataError(
            f"{name} cannot be sent to another process",
            given=f"{kind.__module__}.{kind.__qualname__}{of}: {error}",
            allowed="objects that can be pickled",
            remedy=remedy,
        ) from error


def unpack(data: bytes) -> Any:
    """The value from the bytes that `pack` made."""
    return pickle.loads(data)


def check_picklable(subject: object, name: str = "") -> None:
    """Check that an object can be sent to another process, before it is sent."""
    called = name or getattr(subject, "name", "") or f"a {type(subject).__name__}"
    pack(subject, str(called), "leave out the object that is named here, or open the data by path")
