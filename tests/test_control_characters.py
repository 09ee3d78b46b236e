"""What comes from a store is shown without characters that a terminal obeys or hides."""

from __future__ import annotations

import ast
import unicodedata
import warnings
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import click.testing
import numpy as np
import pytest
import xarray as xr

import xloader
from tests import floors
from xloader import cli
from xloader.errors import NanWarning, UnknownNameError, XloaderError, printable

HOSTILE = "\x1b]0;owned\x07\x1b[2J\r\x7f\x9b31m\u202e\u2066\u200b\u2028\ufeff"
TAG = "<script>"
TIME, CHANNEL, NAME, EMPTY = (f"{name}{HOSTILE}{TAG}" for name in ("time", "c", "t2m", "nan"))


def dataset() -> xr.Dataset:
    attrs = dict.fromkeys(("units", "long_name", "standard_name"), f"K{HOSTILE}{TAG}")
    values = np.random.default_rng(0).normal(280, 9, (40, 4)).astype("f4")
    return xr.Dataset(
        {
            NAME: ((TIME, CHANNEL), values, attrs),
            EMPTY: ((TIME, CHANNEL), np.where(values > 280, np.nan, values), attrs),
        },
        {
            TIME: (TIME, np.arange(40.0), attrs),
            CHANNEL: (CHANNEL, [f"{letter}{HOSTILE}{TAG}" for letter in "abcd"], attrs),
        },
        {"title": f"T{HOSTILE}", "history": f"H{HOSTILE}"},
    )


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("stores") / "a.zarr"
    with warnings.catch_warnings():
        # zarr has no document yet that says how text is stored.
        warnings.simplefilter("ignore")
        encoding = {name: {"chunks": (10, 4)} for name in (NAME, EMPTY)}
        dataset().to_zarr(path, zarr_format=3, consolidated=False, encoding=encoding)
    return path


def obeyed(text: str) -> set[str]:
    """The characters of a text that a terminal may obey or hides, but for ends of lines."""
    return {one for one in text if unicodedata.category(one)[0] == "C" and one != "\n"} | {
        one for one in text if one in "\u2028\u2029"
    }


COMMANDS: dict[str, list[list[str]]] = {
    "doctor": [[]],
    "inspect": [["STORE"], ["STORE", "--nan"]],
    "explain": [
        ["STORE", *(window := ["--window", f"{TIME}=2"])],
        ["STORE", *window, "--compare", "1MiB,2MiB"],
        ["STORE", *window, "--inputs", NAME, "--targets", f"{NAME}@{TIME}=1"],
        ["STORE", *window, "--memory", "900"],
        ["STORE", "--window", f"{TIME}=900"],
        ["STORE", "--variables", f"t2n{HOSTILE}", *window],
    ],
    "bench": [["STORE", *window, "--batch-size", "8", "--seconds", "0.1", "--workers", "0"]],
    "stats": [
        ["STORE"],
        ["STORE", *window, "--dim", TIME],
        ["STORE", "--dim", f"tine{HOSTILE}"],
        ["STORE", "--out", "s.nc"],
        ["STORE", "--out", "s.zarr", "--part", "0/1"],
    ],
    "advise": [["STORE", *window]],
    "materialize": [
        ["STORE", "t.zarr", *window, "--dry-run"],
        ["STORE", "t.zarr", *window],
        ["STORE", "u.zarr", *window, "--chunks", f"{TIME}=3"],
    ],
    "merge": [["s.zarr"], ["none.nc"]],
}
"""By command, the calls that are tried. The demo reads data of its own alone."""


def test_every_command_is_among_them() -> None:
    assert cli.main.commands.keys() == {*COMMANDS, "demo"}


@pytest.mark.parametrize("name", COMMANDS)
def test_commands_print_no_control_characters(
    name: str, store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if name == "bench" and find_spec("torch") is None:
        pytest.skip("needs torch")
    monkeypatch.chdir(tmp_path)
    runner, told = click.testing.CliRunner(), ""
    if name == "merge":
        runner.invoke(cli.main, ["stats", str(store), *COMMANDS["stats"][-1][1:]])
    for call in COMMANDS[name]:
        arguments = [name, *(str(store) if part == "STORE" else part for part in call)]
        result = runner.invoke(cli.main, arguments)
        assert isinstance(result.exception, SystemExit | None), (arguments, result.exception)
        assert obeyed(result.output) == set(), arguments
        told += result.output
    # Names from the store were shown, and did not just go missing.
    assert ("\\x1b]0;owned" in told) == (name not in ("doctor", "bench"))


def shown(store: Path, folder: Path) -> Iterator[Any]:
    """Objects that show names of the store."""
    opened = xloader.open(store)
    yield opened
    samples = opened.window(**{TIME: 2}, stride=1)
    yield samples
    fields = samples.inputs(NAME).targets(EMPTY, **{TIME: 1})
    yield fields.normalize({NAME: (280.0, 9.0), EMPTY: (280.0, 9.0)}).fillna(0.0)
    loader = samples.loader(batch_size=8, output="numpy", memory="1MiB", on_nan="ignore")
    yield from (loader, loader.explain(), loader.plan, next(iter(loader)), loader.report())
    yield from (loader.explain().variables, loader.report().to_dict())
    yield samples.compare_plans(memory=["1MiB", "2MiB"])
    yield from (samples.advise(), samples.coverage(), fields.coverage())
    yield from (fields.is_valid(), fields.dropna())
    yield samples.split(**{TIME: {f"train{HOSTILE}{TAG}": 0.5, "test": 0.5}})
    both = xloader.interleave({f"a{HOSTILE}{TAG}": (samples, 1), "b": (samples, 2)})
    mixed = both.loader(batch_size=8, output="numpy", memory="1MiB", on_nan="ignore")
    yield from (both, mixed, mixed.explain(), next(iter(mixed)), mixed.report())
    running = xloader.RunningStats(samples)
    running.update(next(iter(loader)))
    yield running
    yield samples.materialize(folder / "t.zarr", progress=False)
    mosaic = samples.inputs(NAME).mosaic(folder / "m.zarr")
    yield mosaic


OTHERS = {
    # They show names as repr does, or none at all.
    *("Attempts", "BatchGenerator", "Checkpoint", "CoreShare", "Diagnosis"),
    "ElementList",
    *("FieldNans", "GivenPlace", "HidingStore", "LoaderComparison", "Loader", "MosaicSummary"),
    *("PartialStats", "Rng", "Secrets", "Subset", "Table"),
    "Windows",
    # Their texts are printed in others, which the tests of commands and errors look at.
    *("Labels", "MethodWindows", "StoreInspection", "XloaderError"),
}


def test_every_class_with_a_text_of_its_own_is_looked_at(store: Path, tmp_path: Path) -> None:
    looked_at = {kind.__name__ for each in shown(store, tmp_path) for kind in type(each).__mro__}
    found = {
        kind.name
        for module in floors.read_package(Path(xloader.__file__).parent).values()
        for kind in ast.walk(module.tree)
        if isinstance(kind, ast.ClassDef)
        and {getattr(part, "name", "") for part in kind.body} & {"__str__", "__repr__"}
    }
    assert found - looked_at == OTHERS - looked_at


def test_objects_show_no_control_characters(store: Path, tmp_path: Path) -> None:
    num_named = num_cards = 0
    for each in shown(store, tmp_path):
        texts = [repr(each), str(each)]
        if hasattr(each, "_repr_html_"):
            html = each._repr_html_()
            assert TAG not in html, type(each)
            texts.append(html)
            num_cards += "&lt;script&gt;" in html
        assert [obeyed(text) for text in texts] == [set()] * len(texts), type(each)
        num_named += any("\\x1b]0;owned" in text for text in texts)
    assert num_named > 20
    assert num_cards > 12


def test_errors_and_warnings_show_no_control_characters(store: Path) -> None:
    samples = xloader.open(store).window(**{TIME: 2})
    with pytest.raises(UnknownNameError) as caught:
        samples.inputs(f"t2n{HOSTILE}")
    assert "\\x1b]0;owned" in str(caught.value)
    assert [obeyed(text) for text in (str(caught.value), repr(caught.value))] == [set()] * 2
    with pytest.raises(XloaderError) as caught_value:
        next(iter(samples.loader(batch_size=8, output="numpy", on_nan="raise")))
    assert not obeyed(str(caught_value.value))
    with pytest.warns(NanWarning) as told:
        next(iter(samples.loader(batch_size=8, output="numpy")))
    assert [obeyed(str(own.message)) for own in told] == [set()] * len(told)


def test_names_themselves_stay_as_they_are(store: Path) -> None:
    samples = xloader.open(store).window(**{TIME: 2})
    batch = next(iter(samples.loader(batch_size=8, output="numpy", on_nan="ignore")))
    assert set(batch.as_dict()) == {NAME, EMPTY}
    assert batch[NAME].shape == (8, 2, 4)


def test_a_page_shows_no_control_characters(store: Path, tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    arguments = ["explain", str(store), "--window", f"{TIME}=2", "--html", str(page)]
    assert click.testing.CliRunner().invoke(cli.main, arguments).exit_code == 0
    text = page.read_text("utf-8")
    assert obeyed(text) == set()
    assert TAG not in text
    assert "&lt;script&gt;" in text


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("10\u00a0°C, 2 m\nnext", "10\u00a0°C, 2 m\nnext"),
        ("\x1b[2J\t", r"\x1b[2J\t"),
        ("a\u202eb\u200d\u2028\ud800", r"a\u202eb\u200d\u2028\ud800"),
        ("\U000e0041", r"\U000e0041"),
    ],
)
def test_printable_escapes_as_repr_does(text: str, expected: str) -> None:
    assert printable(text) == expected
    assert printable(expected) == expected
