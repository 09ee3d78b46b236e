"""The reference has every name that users call, every error, and every command."""

from __future__ import annotations

import inspect
import re
import sys
import warnings

import numpy as np
import pytest
import xarray as xr

import xloader
from tests.reference_pages import (
    NOT_ON_THE_SITE,
    REFERENCE,
    extension,
    public_names,
    table_rows,
)
from xloader import errors
from xloader.cli import main
from xloader.compiled.library import load_library
from xloader.engine import run

pytest.importorskip("sphinx")
pytest.importorskip("torch")

INDEX = (REFERENCE / "api.md").read_text("utf-8")
LISTED = extension("reference_names").names_of(INDEX)


def test_every_public_name_has_a_page_or_is_known_to_have_none():
    # The page of the forcings has a table of them.
    shown = {*LISTED, *(f"xloader.forcings.{name}" for name in xloader.forcings.__all__)}
    assert {*public_names()} - shown == NOT_ON_THE_SITE
    assert shown & NOT_ON_THE_SITE == set()


def test_every_name_of_the_index_exists_once_and_is_described():
    assert sorted({*LISTED}) == sorted(LISTED)
    for name in LISTED:
        assert inspect.getdoc(extension("reference_names").resolve_name(name)), name
    with pytest.raises(AttributeError):
        extension("reference_names").resolve_name("xloader.Samples.nothing")


def test_the_first_line_of_a_name_is_short():
    summaries = {name: extension("reference_names").summary_of(name) for name in LISTED}
    assert [name for name, text in summaries.items() if len(text.split()) > 14] == []


def test_ten_options_of_a_loader_come_before_the_others():
    parts = extension("reference_names").sections_of(inspect.getdoc(xloader.Samples.loader))
    first, others = (
        re.findall(r"^(\w+) : ", parts[title], re.MULTILINE)
        for title in ("Parameters", "Other Parameters")
    )
    assert len(first) == 10
    assert {*first, *others} == {*inspect.signature(xloader.Samples.loader).parameters} - {"self"}


def test_results_are_tables_of_their_fields():
    rows = dict(extension("reference_names").member_rows("xloader.Report", {*LISTED}))
    assert {"``seconds`` : float", "``headroom``", "``plot(name=None)``"} <= {*rows}
    # The page of the explanation has the fields that both have.
    assert not any("peak_nbytes" in name for name in rows)
    rows = dict(extension("reference_names").member_rows("xloader.Explanation", {*LISTED}))
    assert "``peak_nbytes`` : int" in rows


def test_every_row_of_every_class_says_something():
    reference_names = extension("reference_names")
    for name in LISTED:
        if isinstance(reference_names.resolve_name(name), type):
            rows = dict(reference_names.member_rows(name, {*LISTED}))
            assert [row for row, text in rows.items() if not text] == [], name


def test_members_with_a_page_or_of_xarray_are_in_no_table():
    rows = dict(extension("reference_names").member_rows("xloader.Samples", {*LISTED}))
    assert "``positions(ids)``" in rows
    assert not any(name.startswith(("``loader", "``clip", "``recipe")) for name in rows)


def test_signatures_say_nothing_of_the_inside():
    clean = extension("reference_names").clean_signature
    given = "(sizes=None, *, pad=mappingproxy({}), **unknown)"
    shown, _ = clean(None, "method", "xloader.Samples.window", None, None, given, None)
    assert shown == "(sizes=None, *, pad={})"
    assert clean(None, "class", "xloader.Report", None, None, given, None) == ("", None)
    assert clean(None, "attribute", "xloader.Report.seconds", None, None, None, None) is None


def test_fields_leave_the_text_and_rare_options_are_called_advanced():
    lines = ["A report.", "", "Attributes", "----------", "seconds : float", "    Seconds.", ""]
    extension("reference_names").clean_text(None, "class", "", xloader.Report, None, lines)
    assert "".join(lines) == "A report."
    lines = ["A loader.", "", "Other Parameters", "----------------", "threads : int", "    Some."]
    extension("reference_names").clean_text(None, "method", "", None, None, lines)
    assert lines[-4:] == ["Advanced", "--------", "threads : int", "    Some."]


# Errors and warnings

ERRORS = {
    name: kind
    for name, kind in vars(errors).items()
    if isinstance(kind, type) and kind.__module__ == "xloader.errors"
}
ROWS = {
    row[0].split("`")[1]: row for row in table_rows((REFERENCE / "errors.md").read_text("utf-8"))
}


def test_every_error_has_its_line_and_no_other():
    assert {*ROWS} == {*ERRORS}
    assert all(len(row) == 3 and all(row) for row in ROWS.values())


def test_errors_belong_to_the_classes_in_brackets():
    top = (errors.XloaderError, errors.XloaderWarning, Exception)
    for name, kind in ERRORS.items():
        bases = [base.__name__ for base in kind.__bases__ if base not in top]
        assert re.findall(r"`(\w+)`", ROWS[name][0])[1:] == bases


def test_the_tree_in_the_code_has_every_class():
    named = re.findall(r"[-`|]-- (\w+)", errors.__doc__)
    assert sorted(named) == sorted({*ERRORS} - {"XloaderError", "XloaderWarning"})


def few_samples():
    return xr.Dataset({"t2m": (("time", "x"), np.zeros((40, 4), "f4"))}).xloader.window(time=2)


def test_jax_that_is_missing_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "jax", None)
    with pytest.raises(
        errors.MissingDependencyError, match=r'JAX is not installed.*output="numpy"'
    ):
        few_samples().loader(batch_size=8, output="jax")


def test_a_program_from_a_pipe_has_no_processes(monkeypatch):
    monkeypatch.setattr(sys.modules["__main__"], "__file__", "<stdin>", raising=False)
    with pytest.raises(errors.WorkersError, match=r"cannot import the program.*from a file"):
        next(iter(few_samples().loader(batch_size=8, processes=2)))


def test_an_installation_without_the_compiled_library_is_told_of(monkeypatch, tmp_path):
    monkeypatch.setattr(run, "load_library", lambda: load_library.__wrapped__(tmp_path))
    monkeypatch.setattr(run, "can_run_natively", lambda parts: False)
    run._warn_of_missing_library.cache_clear()
    # The other tests pass without the library too.
    warnings.simplefilter("always", errors.EnvironmentWarning)
    with (
        few_samples().loader(batch_size=2, output="numpy") as loader,
        pytest.warns(errors.EnvironmentWarning, match=r"without its compiled library.*doctor"),
    ):
        iter(loader)


# The command line and the glossary

COMMANDS_PAGE = (REFERENCE / "command_line.md").read_text("utf-8")


def test_the_page_of_the_command_line_has_every_command_with_its_purpose():
    rows = extension("command_options").rows_of("xloader")
    assert {name.split()[1] for name, _ in rows} == {*main.commands}
    assert all(text for _, text in rows)
    assert "```{command-options}\n:only: xloader\n```" in COMMANDS_PAGE


def test_the_tables_of_options_are_those_of_the_help():
    shown = re.findall(r"^:only: xloader (\w+)\n:options: (.+)\n", COMMANDS_PAGE, re.MULTILINE)
    assert [command for command, _ in shown] == ["explain", "stats"]
    for command, options in shown:
        rows = extension("command_options").rows_of(f"xloader {command}", options.split())
        assert [name.split()[0] for name, _ in rows] == options.split()


def test_the_page_of_the_command_line_names_no_other_option():
    parameters = [*main.params, *(own for cmd in main.commands.values() for own in cmd.params)]
    known = {option for own in parameters for option in (*own.opts, *own.secondary_opts)}
    examples = re.findall(r"^(?:\$|srun) xloader (?:.*\\\n)*.*$", COMMANDS_PAGE, re.MULTILINE)
    named = re.findall(r"[` ](--[a-z][\w-]*)", "\n".join([*examples, *table_text(COMMANDS_PAGE)]))
    assert len(named) > 30
    assert {*named} - known - {"--help"} == set()


def table_text(text):
    return [cell for row in table_rows(text) for cell in row]


def test_the_glossary_has_each_word_once():
    words = re.findall(r"^(\S.*)\n {4}\S", (REFERENCE / "glossary.md").read_text("utf-8"), re.M)
    assert 35 <= len(words) <= 45
    assert words == sorted({*words}, key=str.lower)
