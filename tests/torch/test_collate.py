"""Rows, collate and PadCollate, called directly and by PyTorch."""

from __future__ import annotations

import copy
import pickle
from collections import namedtuple
from functools import partial

import numpy as np
import pytest
import torch
import xarray as xr
from hypothesis import given
from hypothesis import strategies as st
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import default_collate

import xloader
from xloader import Batch
from xloader.errors import OptionError, UnsupportedDataError
from xloader.loader.batches.row_list import Rows
from xloader.tensors.collate import PadCollate, collate

DTYPES = ["bool", "uint8", "int16", "int64", "float16", "float32", "float64", "complex64"]


def make_batch(num_samples: int = 4) -> Batch:
    """Make a batch of a windowed field and a field of numbers, whose last row is padding."""
    x = np.arange(num_samples * 6, dtype=np.float32).reshape(num_samples, 2, 3)
    y = np.arange(num_samples, dtype=np.int16)
    is_padding = np.arange(num_samples) == num_samples - 1
    return Batch([x, y], ["x", "y"], np.arange(num_samples)[::-1] * 10, is_padding)


def assert_same(actual: Batch, expected: Batch) -> None:
    assert isinstance(actual, Batch)
    assert actual.names == expected.names
    assert actual.ids.tolist() == expected.ids.tolist()
    assert actual.is_padding.tolist() == expected.is_padding.tolist()
    for one, other in zip(actual, expected, strict=True):
        assert isinstance(one, torch.Tensor)
        np.testing.assert_array_equal(one.numpy(), other, strict=True)


def test_rows_are_views_of_the_batch() -> None:
    batch = make_batch()
    rows = Rows(batch)
    assert [type(row) for row in rows] == [tuple] * 4
    for row in rows:
        assert all(map(np.shares_memory, row, batch))
    np.testing.assert_array_equal(rows[2][0], batch.x[2])
    assert (rows[2][1].shape, int(rows[2][1])) == ((), 2)
    assert rows.batch is batch
    assert rows.names == ("x", "y")
    assert rows.ids is batch.ids
    assert rows.is_padding is batch.is_padding


def test_rows_pickle_as_their_batch() -> None:
    num_samples = 1000
    batch = Batch([np.zeros((num_samples, 2), np.uint8)], ["x"], np.arange(num_samples))
    rows = Rows(batch)
    assert len(pickle.dumps(rows)) < len(pickle.dumps(batch)) + 100
    again = pickle.loads(pickle.dumps(Rows(make_batch())))
    assert type(again) is Rows
    assert again.batch is not None
    assert_same(collate(again), make_batch())
    assert np.shares_memory(again[1][0], again.batch.x)
    assert copy.deepcopy(rows).batch is not batch


@pytest.mark.parametrize(
    "change",
    [
        lambda rows: rows.reverse(),
        lambda rows: rows.pop(),
        lambda rows: rows.append(rows[0]),
        lambda rows: rows.__setitem__(1, (np.zeros((2, 3), np.float32), np.int16(7))),
    ],
)
def test_changed_rows_are_a_list_like_any_other(change) -> None:
    rows = Rows(make_batch())
    change(rows)
    assert (rows.batch, rows.names, rows.ids, rows.is_padding) == (None, None, None, None)
    again = pickle.loads(pickle.dumps(rows))
    assert type(again) is list
    expected = [np.stack(column) for column in zip(*rows, strict=True)]
    for samples in (rows, again):
        tensors = collate(samples)
        assert type(tensors) is tuple
        for tensor, array in zip(tensors, expected, strict=True):
            np.testing.assert_array_equal(tensor.numpy(), array, strict=True)


def test_rows_that_are_not_stacked_keep_names_and_ids() -> None:
    samples = [(np.zeros(2), 1), (np.zeros(3), 2)]
    rows = Rows.of(samples, ["x", "y"], np.array([4, 1]))
    for one in (rows, pickle.loads(pickle.dumps(rows))):
        assert type(one) is Rows
        assert one.batch is None
        assert one.names == ("x", "y")
        assert one.ids is not None
        assert one.is_padding is not None
        assert (one.ids.tolist(), one.is_padding.tolist()) == ([4, 1], [False, False])
    with pytest.raises(OptionError, match=r"do not match. Given: 2 samples, 1 ids, 2 names"):
        Rows.of(samples, ["x", "y"], np.array([4]))
    with pytest.raises(OptionError, match=r"values a sample: \[2\].*a name for each value"):
        Rows.of(samples, ["x"], np.array([4, 1]))


@pytest.mark.parametrize("make", [lambda batch: batch, Rows])
def test_collate_makes_no_second_stack(make) -> None:
    batch = make_batch()
    tensors = collate(make(batch))
    assert_same(tensors, batch)
    assert all(np.shares_memory(t.numpy(), a) for t, a in zip(tensors, batch, strict=True))
    again = collate(tensors)
    assert all(one is other for one, other in zip(again, tensors, strict=True))


def test_collate_stacks_plain_samples() -> None:
    rows = list(Rows(make_batch()))
    x, y = collate(rows)
    np.testing.assert_array_equal(x.numpy(), make_batch().x, strict=True)
    np.testing.assert_array_equal(y.numpy(), make_batch().y, strict=True)
    alone = collate([row[0] for row in rows])
    np.testing.assert_array_equal(alone.numpy(), make_batch().x, strict=True)
    tensors = collate([(torch.ones(2), 3.5, True), (torch.zeros(2), 4.5, False)])
    assert [t.dtype for t in tensors] == [torch.float32, torch.float64, torch.bool]
    assert tensors[0].tolist() == [[1, 1], [0, 0]]


@pytest.mark.parametrize("dtype", DTYPES)
def test_numbers_of_numpy_keep_their_dtype(dtype: str) -> None:
    values = np.array([1, 0, 1]).astype(dtype)
    (tensor,) = collate([(value,) for value in values])
    np.testing.assert_array_equal(tensor.numpy(), values, strict=True)


def _read_only(array: np.ndarray) -> np.ndarray:
    array.flags.writeable = False
    return array


@pytest.mark.parametrize(
    "change",
    [
        lambda x: x[:, ::-1],
        lambda x: x[::-1],
        lambda x: x.astype(">f4"),
        lambda x: np.asfortranarray(x),
        _read_only,
    ],
)
def test_arrays_that_torch_does_not_take(change) -> None:
    given = change(make_batch().x)
    batch = Batch([given], ["x"], np.arange(4))
    for tensor in (collate(batch).x, collate([(row,) for row in given])[0]):
        np.testing.assert_array_equal(tensor.numpy(), given.astype("=f4"), strict=True)


def test_what_is_no_plain_tuple_comes_as_from_torch() -> None:
    point = namedtuple("point", ["x", "y"])
    named = collate([point(1, np.zeros(2)), point(2, np.ones(2))])
    assert isinstance(named, point)
    assert named.x.tolist() == [1, 2]
    by_name = collate([{"a": 1.0}, {"a": 2.0}])
    assert by_name["a"].tolist() == [1.0, 2.0]
    texts, inner = collate([("a", {"b": 1}), ("c", {"b": 2})])
    assert texts == ["a", "c"] or texts == ("a", "c")
    assert inner["b"].tolist() == [1, 2]
    batch = collate(Rows.of([("a",), ("b",)], ["text"], np.arange(2)))
    assert repr(batch) in ("Batch(text=list, num_samples=2)", "Batch(text=tuple, num_samples=2)")


def test_errors_of_collate() -> None:
    with pytest.raises(OptionError, match="no samples to make a batch of"):
        collate([])
    with pytest.raises(OptionError, match=r"same number of fields. Given: \[1, 2\]"):
        collate([(1,), (1, 2)])
    ragged = Rows.of([(np.zeros(2),), (np.zeros(3),)], ["x"], np.arange(2))
    with pytest.raises(OptionError, match=r"'x' have unequal.*\(2,\), \(3,\).*PadCollate\(\)"):
        collate(ragged)
    with pytest.raises(
        UnsupportedDataError, match=r"'x' holds values that a tensor cannot hold.*<U1"
    ):
        collate(Batch([np.array(["a"])], ["x"], np.arange(1)))


def test_padding_as_pad_sequence_does() -> None:
    rows = Rows.of([(np.ones((2, 5)), 7), (np.ones((4, 5)), 8)], ["x", "y"], np.array([4, 1]))
    batch = PadCollate(fill_value=-1)(rows)
    assert batch.names == ("x", "y", "x_lengths")
    assert batch.ids.tolist() == [4, 1]
    expected = pad_sequence([torch.ones(2, 5), torch.ones(4, 5)], True, -1).double()
    assert torch.equal(batch.x, expected)
    assert batch.x_lengths.tolist() == [2, 4]
    assert batch.y.tolist() == [7, 8]
    packed = torch.nn.utils.rnn.pack_padded_sequence(batch.x, batch.x_lengths, True, False)
    assert packed.batch_sizes.tolist() == [2, 2, 1, 1]


sizes = st.lists(st.integers(0, 4), min_size=2, max_size=2)


@given(st.lists(sizes, min_size=1, max_size=5), st.sampled_from(DTYPES), st.booleans())
def test_padding_keeps_every_value(shapes, dtype: str, are_tensors: bool) -> None:
    arrays = [np.arange(1, a * 3 * b + 1).reshape(a, 3, b).astype(dtype) for a, b in shapes]
    given = [(torch.from_numpy(a),) if are_tensors else (a,) for a in arrays]
    whole, lengths = PadCollate((0, -1))(given)
    assert lengths.tolist() == shapes
    assert str(whole.dtype) == f"torch.{dtype}"
    most_a, most_b = np.max(shapes, axis=0)
    assert whole.shape == (len(shapes), most_a, 3, most_b)
    fill = np.nan if np.dtype(dtype).kind in "fc" else 0
    for array, padded, (a, b) in zip(arrays, whole.numpy(), shapes, strict=True):
        np.testing.assert_array_equal(padded[:a, :, :b], array)
        is_filled = np.ones(padded.shape, bool)
        is_filled[:a, :, :b] = False
        assert np.array_equal(padded[is_filled], np.full(is_filled.sum(), fill, dtype), True)


def test_padding_is_said_by_field() -> None:
    samples = [(np.ones((1, n)), np.ones(n, int), np.ones(2)) for n in (1, 3)]
    x, y, z, *lengths = PadCollate({0: 1, 1: 0}, fill_value={1: -100})(samples)
    np.testing.assert_array_equal(x[0].numpy(), [[1, np.nan, np.nan]])
    assert y.tolist() == [[1, -100, -100], [1, 1, 1]]
    assert z.tolist() == [[1, 1], [1, 1]]
    assert [one.tolist() for one in lengths] == [[1, 3], [1, 3]]
    rows = Rows.of(samples, ["x", "y", "z"], np.arange(2))
    batch = PadCollate({"y": 0, "x": -1})(rows)
    assert batch.names == ("x", "y", "z", "x_lengths", "y_lengths")
    assert batch.x_lengths.tolist() == [1, 3]


def test_lengths_are_there_where_all_are_equal() -> None:
    for samples in (make_batch(), Rows(make_batch())):
        batch = PadCollate(-1)(samples)
        assert batch.names == ("x", "y", "x_lengths")
        assert batch.x_lengths.tolist() == [3, 3, 3, 3]
        np.testing.assert_array_equal(batch.x.numpy(), make_batch().x, strict=True)
        assert batch.is_padding.tolist() == make_batch().is_padding.tolist()
    assert [t.tolist() for t in PadCollate()([np.ones(1, int), np.ones(2, int)])] == [
        [[1, 0], [1, 1]],
        [1, 2],
    ]


@pytest.mark.parametrize(
    ("pad", "text"),
    [
        (PadCollate(0), r"'0' differ along axes other than 0.*\(2, 3\) and \(3, 4\).*\(0, 1\)"),
        (
            PadCollate({"inputs": 0}),
            r"names a field that samples do not have. Given: 'inputs'.*'0', '1'",
        ),
        (PadCollate({5: 0}), r"do not have. Given: 5.*from 0 to 1"),
        (
            PadCollate({0: (0, 1), 1: 0}),
            r"field '1' does not have the axes.*axes 0 of samples with 0 dim",
        ),
        (PadCollate({0: 2}), r"axes 2 of samples with 2 dimensions. Allowed: axes from -2 to 1"),
        (PadCollate((0, 1), fill_value=0.5), r"cannot hold the fill value. Given: 0.5 for int16"),
        (PadCollate((0, 1), fill_value=1 << 20), r"Given: 1048576 for int16.*-32768 to 32767"),
        (PadCollate((0, 1), fill_value=np.nan), r"Given: nan for int16"),
    ],
)
def test_errors_of_padding(pad: PadCollate, text: str) -> None:
    samples = [(np.ones((2, 3), np.int16), 1), (np.ones((3, 4), np.int16), 2)]
    with pytest.raises(OptionError, match=text):
        pad(samples)
    with pytest.raises(OptionError, match="no sample"):
        pad([])


@pytest.mark.parametrize("collate_fn", [default_collate, collate, PadCollate(1)])
@pytest.mark.parametrize("output", ["numpy", "torch"])
def test_functions_of_torch_collate_for_our_loader(collate_fn, output) -> None:
    values = np.arange(42 * 3, dtype=np.float32).reshape(42, 3)
    samples = xloader.open(xr.Dataset({"a": (("time", "x"), values)})).window(time=3, stride=1)
    make = partial(samples.loader, batch_size=8, shuffle=False, output=output)
    with make(collate_fn=collate_fn) as loader, make(output="numpy") as plain:
        for batch, expected in zip(loader, plain, strict=True):
            np.testing.assert_array_equal(batch[0].numpy(), expected[0], strict=True)
