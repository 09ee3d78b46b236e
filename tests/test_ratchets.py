"""The package grows nowhere, unless the table of ratchets says by how much and why."""

from __future__ import annotations

import ast
import tomllib

import pytest

from tests import ratchets

PYTHON = '''"""Words
of the module."""
import numpy as np  # a comment

LIMIT = 3
"""A bare string describes the constant."""


class Grid:
    """Public."""

    def shape(self, own):
        """Public, too."""
        found = """code
        on two lines"""
        if (told := own):
            own = [asked for asked in found]
        return found

    def _parts(self):
        """Private
        words.
        """
'''
C = """/* a comment
 * goes on */
#include <math.h>  // and more

int a = 1; /* behind code */
const char *s = "// not a comment";
"""


def test_lines_of_python_are_counted():
    public = frozenset({"p.a.Grid", "p.a.Grid.shape"})
    assert ratchets.python_figures(PYTHON, "p.a", public) == {
        "code": 10,
        "files": 1,
        "docstrings": 8,
        "private_docstrings": 6,
        "vague_names": 5,
    }


def test_each_docstring_belongs_to_what_it_describes():
    names = [name for name, _ in ratchets.docstrings_of(ast.parse(PYTHON), "p.a")]
    assert names == ["p.a", "p.a.LIMIT", "p.a.Grid", "p.a.Grid.shape", "p.a.Grid._parts"]


def test_lines_of_c_are_counted_without_comments():
    assert ratchets.c_figures(C) == {"c": 3, "files": 1}


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("for own, found in told: pass", 2),
        ("with f() as told, g() as [asked]: pass", 2),
        ("import a as own\nfrom b import c as found, told", 3),
        ("lambda own, *asked: 1", 2),
        ("try: pass\nexcept E as found: pass", 1),
        ("f(own=found)\nx.told = asked\nowner = 1", 0),
    ],
)
def test_names_that_say_nothing_are_counted_where_they_are_bound(text, count):
    assert ratchets.python_figures(text, "p.a", frozenset())["vague_names"] == count


def table(**figures):
    return {"start": {"code": 9}, "budgets": [], "spent": [], "figures": figures}


def test_a_figure_may_fall_but_not_rise():
    old = table(package={"code": 5, "files": 2}, core={"code": 5, "files": 2})
    assert ratchets.rises({"package": {"code": 4, "files": 2}, "core": {"code": 4}}, old) == []
    messages = ratchets.rises({"package": {"code": 5}, "core": {"code": 6, "c": 1}}, old)
    assert [message.partition(":")[0] for message in messages] == [
        "core has 1 c, 0 are allowed",
        "core has 6 code, 5 are allowed",
    ]
    assert ratchets.rises({"order": {"code": 1}}, old) == [
        "order is new: run `python -m tests.ratchets`"
    ]


def test_a_table_written_anew_only_falls_but_for_new_rooms_and_budgets():
    old = table(package={"code": 9}, core={"code": 5}, loader={"code": 4})
    budget = {"room": "core", "code": 2, "reason": 'more "axes"'}
    old["budgets"] = [budget]
    today = {"package": {"code": 10}, "core": {"code": 6}, "html": {"code": 1}}
    new = ratchets.lowered(today, old)
    assert new == {
        "start": {"code": 9},
        "budgets": [],
        "spent": [budget],
        "figures": {"package": {"code": 9}, "core": {"code": 6}, "html": {"code": 1}},
    }
    assert ratchets.rises({"core": {"code": 7}}, old) == []
    assert len(ratchets.rises({"core": {"code": 7}}, new)) == 1
    assert tomllib.loads(ratchets.table_text(new)) == new
    assert tomllib.loads(ratchets.table_text(old)) == old


def test_public_docstrings_are_those_of_the_reference():
    pytest.importorskip("torch")
    public = ratchets.public_places()
    assert {"xloader.samples.samples.Samples.window", "xloader.errors.XloaderError"} <= public
    assert "xloader.samples.samples" not in public
    assert not [name for name in public if name.rpartition(".")[2].startswith("_")]


def test_no_figure_of_the_package_rises():
    pytest.importorskip("torch")
    figures, held = ratchets.count_package(), ratchets.read_table()
    assert figures["package"]["loaded"] > 4
    assert figures["compiled"]["c"] > 100
    messages = ratchets.rises(figures, held)
    assert not messages, "\n".join(messages)
