"""Functions on single samples, and the random numbers that these functions draw."""

from __future__ import annotations

import pickle
import random
import threading
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import default_collate

from xloader import Batch
from xloader.errors import OptionError, TransformError, UnsupportedDataError
from xloader.loader.batches.row_list import Rows
from xloader.tensors.collate import PadCollate, collate
from xloader.tensors.item_transforms import ItemTransforms
from xloader.transforms.rng import sample_keys


def make_batch(ids: list[int] | None = None) -> Batch:
    ids = [4, 1, 7] if ids is None else ids
    x = np.repeat(np.array(ids, np.float32), 6).reshape(-1, 2, 3)
    return Batch([x, np.array(ids)], ["x", "y"], np.array(ids))


def chance(x: Any) -> np.ndarray:
    """Draw a number from every generator that augmentation uses."""
    return np.array([random.random(), np.random.rand(), torch.rand(()).item()])  # noqa: NPY002


class Compose:
    """A composition of functions like torchvision's."""

    def __init__(self, *functions: Any) -> None:
        self.functions = functions

    def __call__(self, x: Any) -> Any:
        for function in self.functions:
            x = function(x)
        return x


def test_each_function_is_given_its_field() -> None:
    transforms = ItemTransforms(
        Compose(torch.from_numpy, torch.nn.Flatten(0), lambda x: x * 2), lambda y: y + 1
    )
    rows = transforms.apply(make_batch(), None)
    assert type(rows) is Rows
    assert rows.names == ("x", "y")
    assert rows.ids is not None
    assert rows.ids.tolist() == [4, 1, 7]
    batch = collate(rows)
    assert batch.x.tolist() == [[8] * 6, [2] * 6, [14] * 6]
    assert batch.y.tolist() == [5, 2, 8]
    assert [t.tolist() for t in default_collate(rows)] == [t.tolist() for t in batch]


def test_without_functions_nothing_is_done() -> None:
    batch = make_batch()
    rows = ItemTransforms().apply(batch, None)
    assert isinstance(rows, Rows)
    assert rows.batch is batch
    assert not ItemTransforms()
    assert ItemTransforms(transforms=print)


def test_one_of_them_leaves_the_other_field_alone() -> None:
    batch = make_batch()
    for row, (x, y) in enumerate(ItemTransforms(target_transform=int).apply(batch, None)):
        assert np.shares_memory(x, batch.x)
        assert (type(y), y) == (int, batch.y[row])
    for x, y in ItemTransforms(lambda x: x[:1]).apply(batch, None):
        assert (x.shape, y.shape) == ((1, 3), ())


def test_a_joint_function_is_given_all_fields() -> None:
    def flip(x: np.ndarray, y: np.ndarray) -> tuple[Any, ...]:
        return x[:, ::-1], -y

    batch = collate(ItemTransforms(transforms=flip).apply(make_batch(), None))
    assert batch.y.tolist() == [-4, -1, -7]
    listed = ItemTransforms(transforms=lambda x, y: [x, -y])
    assert collate(listed.apply(make_batch(), None)).y.tolist() == [-4, -1, -7]
    alone = Batch([make_batch().x], ["x"], make_batch().ids)
    rows = ItemTransforms(transforms=lambda x: x.sum()).apply(alone, None)
    assert collate(rows).x.tolist() == [24, 6, 42]


def test_a_joint_function_may_return_something_else() -> None:
    three = ItemTransforms(transforms=lambda x, y: (x, y, x > 4)).apply(make_batch(), None)
    assert type(three) is list
    assert [tuple(t.shape) for t in collate(three)] == [(3, 2, 3), (3,), (3, 2, 3)]
    named = ItemTransforms(transforms=lambda x, y: {"x": x, "y": y}).apply(make_batch(), None)
    assert collate(named)["y"].tolist() == [4, 1, 7]


def test_what_does_not_stack_is_padded() -> None:
    transforms = ItemTransforms(lambda x: x.ravel()[: int(x[0, 0])])
    rows = transforms.apply(make_batch([1, 3]), None)
    with pytest.raises(OptionError, match=r"'x' have unequal shapes.*PadCollate"):
        collate(rows)
    batch = PadCollate(fill_value=0)(rows)
    assert batch.x.tolist() == [[1, 0, 0], [3, 3, 3]]
    assert batch.x_lengths.tolist() == [1, 3]
    assert batch.ids.tolist() == [1, 3]


def keyed(ids: list[int], occurrences: list[int] | None = None, epoch: int = 0) -> Any:
    keys = sample_keys(0, epoch, ids, occurrences)
    return np.stack([x for x, _ in ItemTransforms(chance).apply(make_batch(ids), keys)])


def test_chance_depends_on_the_sample_alone() -> None:
    expected = dict(zip([4, 1, 7], keyed([4, 1, 7]), strict=True))
    for ids in ([7], [1, 4], [7, 4, 1]):
        np.testing.assert_array_equal(keyed(ids), [expected[i] for i in ids])
    others = [keyed([4], [1])[0], keyed([4], epoch=1)[0], *expected.values()]
    # Each generator has its own numbers, and no two samples share them.
    assert len(np.unique(others)) == 3 * len(others)


def test_the_generators_stand_where_they_stood() -> None:
    def failing(x: Any) -> None:
        chance(x)
        raise ValueError("broken")

    random.seed(1), np.random.seed(1), torch.manual_seed(1)  # noqa: NPY002
    # NumPy makes normal numbers in pairs and keeps the second one, which must stay.
    np.random.standard_normal()  # noqa: NPY002
    states = random.getstate(), np.random.get_state(), torch.get_rng_state()  # noqa: NPY002
    keys = sample_keys(0, 0, [4, 1, 7])
    ItemTransforms(chance).apply(make_batch(), keys)
    with pytest.raises(TransformError, match="broken"):
        ItemTransforms(failing).apply(make_batch(), keys)
    assert random.getstate() == states[0]
    for one, other in zip(np.random.get_state(), states[1], strict=True):  # noqa: NPY002
        np.testing.assert_array_equal(one, other)
    assert torch.equal(torch.get_rng_state(), states[2])


def test_they_pickle_with_lambdas() -> None:
    factor = 3
    again = pickle.loads(pickle.dumps(ItemTransforms(lambda x: x * factor)))
    assert collate(again.apply(make_batch(), None)).x[0, 0].tolist() == [12] * 3
    with pytest.raises(TypeError, match="pickle") as caught:
        pickle.dumps(ItemTransforms(Compose(threading.Lock())))
    assert "raised while transform was pickled" in str(caught.value.__notes__)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"transform": 3}, "transform cannot be called. Given: 3.*Compose"),
        ({"transforms": [print]}, r"transforms cannot be called"),
        (
            {"transforms": print, "transform": print},
            r"cannot be combined with transform or target_transform.*Given: ",
        ),
    ],
)
def test_errors_of_the_options(options: dict[str, Any], text: str) -> None:
    with pytest.raises(OptionError, match=text):
        ItemTransforms(**options)


def test_errors_of_the_functions() -> None:
    def broken(x: np.ndarray) -> np.ndarray:
        if x[0, 0] == 1:
            raise ValueError("broken")
        return x

    with pytest.raises(TransformError, match=r"transform of sample 1 failed.*broken") as caught:
        ItemTransforms(broken).apply(make_batch(), None)
    assert isinstance(caught.value.__cause__, ValueError)
    with pytest.raises(UnsupportedDataError, match=r"transform returned None.*changes it in place"):
        ItemTransforms(lambda x: x.sort()).apply(make_batch(), None)
    with pytest.raises(UnsupportedDataError, match="transforms returned None"):
        ItemTransforms(transforms=lambda x, y: (x, None)).apply(make_batch(), None)
    alone = Batch([make_batch().x], ["x"], make_batch().ids)
    with pytest.raises(OptionError, match=r"needs a second field.*Given: fields \['x'\]"):
        ItemTransforms(target_transform=int).apply(alone, None)
