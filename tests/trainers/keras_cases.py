"""Keras on a DataLoader of xloader: ``python keras_cases.py STORE``, with KERAS_BACKEND set."""

from __future__ import annotations

import sys
from typing import Any

import keras
import numpy as np

from tests.trainers.cases import OPTIONS, make_loader, open_samples
from xloader.torch import data_loader


def make_model(weights: Any = None) -> Any:
    """Make a linear model; the order of its batches decides what it becomes."""
    model = keras.Sequential([keras.Input((1, 4)), keras.layers.Dense(4)])
    if weights is not None:
        model.set_weights(weights)
    model.compile(keras.optimizers.SGD(0.1), "mse")
    return model


def main(store: str) -> None:
    """Train on a DataLoader and on tuples of the same values, which must give the same weights."""
    model = make_model()
    other = make_model(model.get_weights())
    options = {**OPTIONS, "batch_size": 8, "drop_last": True}
    model.fit(data_loader(open_samples(store), **options), epochs=2, verbose=0)
    by_hand = make_loader(store, drop_last=True, output="numpy")
    pairs = [tuple(np.array(field) for field in batch) for _ in range(2) for batch in by_hand]
    for inputs, targets in pairs:
        other.train_on_batch(inputs, targets)
    for own, expected in zip(model.get_weights(), other.get_weights(), strict=True):
        np.testing.assert_allclose(own, expected, rtol=1e-5)
    moved = make_model(model.get_weights())
    for inputs, targets in pairs[::-1]:
        moved.train_on_batch(inputs, targets)
    assert not np.allclose(moved.get_weights()[0], model.get_weights()[0], rtol=1e-5)
    ordered = data_loader(open_samples(store), 8, shuffle=False, memory="2KiB")
    assert model.predict(ordered, verbose=0).shape == (45, 1, 4)


if __name__ == "__main__":
    main(sys.argv[1])
