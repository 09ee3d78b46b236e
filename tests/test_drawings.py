"""The picture of the landing page shows what the library really does."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

DOCS = Path(__file__).resolve().parents[1] / "docs"


@pytest.fixture(scope="module")
def script() -> ModuleType:
    """The script that draws it."""
    spec = importlib.util.spec_from_file_location("orders", DOCS / "drawings" / "orders.py")
    module = importlib.util.module_from_spec(spec)
    # Dataclasses look up their module by its name.
    sys.modules["orders"] = module
    try:
        spec.loader.exec_module(module)
        yield module
    finally:
        del sys.modules["orders"]


@pytest.fixture(scope="module")
def orders(script, tmp_path_factory):
    """The three orders, found anew."""
    return script.find_orders(script.make_samples(str(tmp_path_factory.mktemp("orders"))))


def test_the_files_are_those_that_the_script_draws(script, orders):
    drawn = script.draw_all(orders)
    assert {name: (DOCS / "_static" / name).read_text("utf-8") for name in drawn} == drawn


def test_every_order_has_each_sample_once(script, orders):
    for order in orders:
        assert np.array_equal(np.sort(order.ids), np.arange(script.NUM_SAMPLES))


def test_the_page_names_the_numbers_of_the_drawing(orders):
    page = (DOCS / "index.md").read_text("utf-8")
    shuffled, ascending, paced = orders
    assert f"chunks decoded {shuffled.decodes:.1f} times, a batch draws from 12" in page
    assert round(shuffled.chunks_of_a_batch) == 12
    assert "decoded once, a batch draws from 1." in page
    assert f"decoded once, a batch draws from {round(paced.chunks_of_a_batch)}." in page
    assert ascending.decodes == paced.decodes == ascending.chunks_of_a_batch == 1
