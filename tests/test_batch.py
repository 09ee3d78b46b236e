from __future__ import annotations

import copy
import pickle
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from xloader import Batch
from xloader.errors import OptionError, UnknownNameError, UnsupportedDataError


def _batch() -> Batch:
    arrays = [np.arange(6.0).reshape(3, 2), np.array([1, 2, 3])]
    return Batch(arrays, ["inputs", "ids"], [4, 0, 2], np.array([False, False, True]))


def test_a_batch_is_the_tuple_of_its_fields() -> None:
    inputs, targets = batch = _batch()
    assert isinstance(batch, tuple)
    assert len(batch) == 2
    assert batch[0] is inputs is batch.inputs is batch["inputs"]
    assert batch[-1] is targets is batch["ids"]
    assert batch.names == ("inputs", "ids")
    assert "inputs" in dir(batch)


def test_ids_and_padding() -> None:
    batch = _batch()
    assert batch.ids.dtype == np.int64
    assert batch.ids.tolist() == [4, 0, 2]
    assert batch.is_padding.tolist() == [False, False, True]
    assert batch.num_samples == 3
    assert Batch([np.zeros(2)], ["a"], np.array([1, 2])).is_padding.tolist() == [False, False]


def test_as_dict_and_repr() -> None:
    batch = _batch()
    assert list(batch.as_dict()) == list(batch._asdict()) == ["inputs", "ids"]
    assert repr(batch) == "Batch(inputs=float64 (3, 2), ids=int64 (3,), num_samples=3)"


@pytest.mark.parametrize(
    "again", [copy.copy, copy.deepcopy, lambda b: pickle.loads(pickle.dumps(b))]
)
def test_copies(again) -> None:
    actual, expected = again(_batch()), _batch()
    assert isinstance(actual, Batch)
    assert actual.names == expected.names
    np.testing.assert_array_equal(actual.inputs, expected.inputs)
    np.testing.assert_array_equal(actual.ids, expected.ids)
    np.testing.assert_array_equal(actual.is_padding, expected.is_padding)


class _Tensor:
    dtype, shape = "torch.float32", (1,)

    def __init__(self) -> None:
        self.moves: list[object] = []

    def to(self, device: object, non_blocking: bool) -> _Tensor:
        moved = _Tensor()
        moved.moves = [*self.moves, (device, non_blocking)]
        return moved


def test_to_moves_every_field_and_keeps_the_rest() -> None:
    batch = Batch([_Tensor(), _Tensor()], ["a", "b"], np.array([3]), np.array([True]))
    moved = batch.to("cuda", non_blocking=True)
    assert [tensor.moves for tensor in moved] == [[("cuda", True)]] * 2
    assert (moved.names, moved.ids.tolist(), moved.is_padding.tolist()) == (("a", "b"), [3], [True])
    assert batch.a.moves == []


def test_errors() -> None:
    with pytest.raises(UnsupportedDataError, match=r'cannot be moved.*ndarray.*output="torch"'):
        _batch().to("cuda")
    with pytest.raises(
        UnknownNameError, match=r"no field with this name. Given: 'input'.*'inputs'"
    ):
        _batch()["input"]
    with pytest.raises(AttributeError, match=r"no attribute or field 'input'"):
        _ = _batch().input
    with pytest.raises(OptionError, match=r"do not match. Given: 1 arrays, 2 names, 1 ids"):
        Batch([np.zeros(1)], ["a", "b"], np.array([1]))


def test_threads_that_make_the_first_batches_make_one_class() -> None:
    def make(name: str) -> type[Batch]:
        barrier.wait()
        return type(Batch([np.zeros(1)], [name], np.array([1])))

    barrier, interval = threading.Barrier(4), sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        with ThreadPoolExecutor(4) as pool:
            for number in range(100):
                assert len(set(pool.map(make, 4 * [f"one of threads {number}"]))) == 1
    finally:
        sys.setswitchinterval(interval)
