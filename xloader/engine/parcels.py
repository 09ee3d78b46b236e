"""Objects that one process leaves to another: small parts as bytes, arrays in shared memory."""

from __future__ import annotations

import contextlib
import io
import pickle
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from xloader.engine.buffers import Buffer

_ALIGNMENT = 64


class Parcel(NamedTuple):
    """An object that was taken apart.

    Parameters
    ----------
    data : bytes
        All of it but its arrays.
    places : tuple of (int, int)
        Where each array begins and ends in the room; none if the arrays did not fit in there and
        are part of the data.
    """

    data: bytes
    places: tuple[tuple[int, int], ...]


def pack(value: object, room: Buffer | None, hand_over: Callable[[Any], Any]) -> Parcel:
    """Take an object apart.

    Parameters
    ----------
    value : object
        Anything that can be pickled.
    room : numpy.ndarray of uint8
        Gets the bytes of arrays, if there is enough room.
    hand_over : callable
        Makes an array of the loader's kind from a NumPy array. Tensors of that kind count as
        arrays.
    """
    tensor_type = type(hand_over(np.zeros(1, np.float32)))
    buffers: list[pickle.PickleBuffer] = []
    data = _dumps(value, tensor_type, hand_over, buffers.append)
    places, end = [], 0
    for buffer in buffers:
        begin = -(-end // _ALIGNMENT) * _ALIGNMENT
        end = begin + buffer.raw().nbytes
        places.append((begin, end))
    if room is None or end > room.nbytes:
        return Parcel(_dumps(value, tensor_type, hand_over, None), ())
    for buffer, (begin, end) in zip(buffers, places, strict=True):
        room[begin:end] = np.frombuffer(buffer.raw(), np.uint8)
    return Parcel(data, tuple(places))


def unpack(parcel: Parcel, room: Buffer | None) -> Any:
    """Put an object together again. Its arrays use the memory of the room.

    Parameters
    ----------
    parcel : Parcel
        What `pack` returned.
    room : numpy.ndarray of uint8
        The same room.
    """
    if room is None:
        return pickle.loads(parcel.data)
    return pickle.loads(parcel.data, buffers=[room[begin:end] for begin, end in parcel.places])


def _dumps(
    value: object,
    tensor_type: type,
    hand_over: Callable[[Any], Any],
    keep: Callable[[pickle.PickleBuffer], Any] | None,
) -> bytes:
    import cloudpickle

    class Pickler(cloudpickle.Pickler):  # type: ignore[misc]
        def reducer_override(self, value: Any) -> Any:
            if type(value) is tensor_type and tensor_type is not np.ndarray:
                # NumPy lacks some dtypes, and tensors with gradients are more than an array.
                with contextlib.suppress(TypeError, RuntimeError):
                    return hand_over, (np.asarray(value),)
            return super().reducer_override(value)

    file = io.BytesIO()
    Pickler(file, protocol=5, buffer_callback=keep).dump(value)
    return file.getvalue()
