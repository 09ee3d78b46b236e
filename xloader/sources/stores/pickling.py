"""What travels to another process: packed at once, and named where it cannot."""

from __future__ import annotations

import pickle
import warnings
from typing import Any, Final

import cloudpickle

from xloader.errors import UnsupportedDataError, XloaderError, XloaderWarning

MOST_QUIET_NBYTES: Final = 64 * 2**20
"""64 MiB: above this, data that is copied into every process is warned about."""


def pack(value: object, name: str, remedy: str) -> bytes:
    """Pickle a value into bytes of its own, so that what fails is known by name.

    Parameters
    ----------
    value : object
        What is to travel. What only cloudpickle can carry travels by cloudpickle.
    name : str
        What it belongs to, for messages.
    remedy : str
        What the user can do where it does not travel.

    Returns
    -------
    bytes
        For `unpack`.

    Raises
    ------
    UnsupportedDataError
        If it does not pickle: its class is named, and what in it is at fault.
    """
    try:
        data = pickle.dumps(value, pickle.HIGHEST_PROTOCOL)
    except XloaderError:
        raise
    except Exception:
        data = _pack_by_value(value, name, remedy)
    if len(data) > MOST_QUIET_NBYTES:
        warnings.warn(
            f"{name} lies in memory: {len(data) / 2**20:.0f} MiB of it are copied into each "
            "process that it is sent to. Write it to disk and open it from there.",
            XloaderWarning,
            stacklevel=3,
        )
    return data


def _pack_by_value(value: object, name: str, remedy: str) -> bytes:
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
            allowed="what pickles",
            remedy=remedy,
        ) from error


def unpack(data: bytes) -> Any:
    """Give back what `pack` made bytes of."""
    return pickle.loads(data)


def check_picklable(subject: object, name: str = "") -> None:
    """See to it that something can be sent to another process, before it is.

    Parameters
    ----------
    subject : object
        A source, an opener, or anything that holds one.
    name : str, optional
        What to call it; by default its own ``name``, or its class.

    Raises
    ------
    UnsupportedDataError
        If it does not pickle, with the object in it that does not.

    Examples
    --------
    >>> check_picklable([1, 2, 3])
    """
    called = name or getattr(subject, "name", "") or f"a {type(subject).__name__}"
    pack(subject, str(called), "leave out what the message names, or open the data by its path")
