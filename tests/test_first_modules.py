"""States and caches name functions of ours by their first modules, wherever they are now."""

from __future__ import annotations

import ast
from functools import partial
from pathlib import Path

import pytest

import xloader
from tests import floors
from xloader import forcings
from xloader.cluster.checkpoint_places import describe_function
from xloader.core.windows import Windows
from xloader.transforms.steps import FIRST_MODULES, Map, text_of
from xloader.xbatcher.patches import make_patches
from xloader.xbatcher.to_samples import Stacked

STACKED = Stacked(make_patches({"x": 6}, {"x": 3}, {}, {}, is_joined=False), ("sample",), ("x",))
TEXTS = {
    "insolation": "xloader.forcings.solar_radiation.insolation",
    "latitude": "xloader.forcings.cycles.latitude",
    **{
        name: f"xloader.forcings.cycles.{name}"
        for name in forcings.__all__
        if name.startswith(("sin_", "cos_"))
    },
}


@pytest.mark.parametrize("name", forcings.__all__)
def test_a_forcing_has_the_same_name_after_a_move(name: str, monkeypatch: pytest.MonkeyPatch):
    fn = getattr(forcings, name)
    before = describe_function(fn)
    assert before.startswith(TEXTS[name])
    for module in (fn.__module__, "xloader.recipe.elsewhere"):
        monkeypatch.setattr(fn, "__module__", module)
        assert text_of(fn) == TEXTS[name]
        assert text_of(partial(fn, lon=0.0)) == f"partial({TEXTS[name]}, (), {{'lon': 0.0}})"
        assert describe_function(fn) == before


def test_a_transform_of_ours_has_the_same_name_after_a_move(monkeypatch: pytest.MonkeyPatch):
    before = Map(STACKED).describe()
    assert before == (
        "map(xloader.xbatcher.to_samples.Stacked(('sample',), Patches(lines=(Line(dim='x', size=3, "
        "stride=3, num_patches=2, per_batch=1, num_batches=2),), input_dims=('x',), "
        "is_joined=False)), per='batch')"
    )
    monkeypatch.setattr(Stacked, "__module__", "xloader.elsewhere")
    assert Map(STACKED).describe() == before


def test_functions_of_users_are_named_by_their_modules(monkeypatch: pytest.MonkeyPatch):
    def insolation() -> None: ...

    insolation.__qualname__ = "insolation"
    assert text_of(insolation) == f"{__name__}.insolation"
    monkeypatch.setattr(insolation, "__module__", "xloader_of_mine.sun")
    assert text_of(insolation) == "xloader_of_mine.sun.insolation"
    assert text_of(Windows) == "xloader.core.windows.Windows"


def test_each_function_of_ours_that_samples_can_have_is_listed():
    listed = {"Stacked", *forcings.__all__}
    for module in floors.read_package(Path(xloader.__file__).parent).values():
        for node in ast.walk(module.tree):
            if isinstance(node, ast.Call) and ast.unparse(node.func) in ("Map", "steps.Map"):
                made = ast.unparse(node.args[0]).partition("(")[0]
                listed |= {made} - {"fn"}  # `Samples.map` hands on a user's function as `fn`.
    assert listed == set(FIRST_MODULES)
