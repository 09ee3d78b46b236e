"""The package grows nowhere, unless the table of ratchets says by how much and why."""

from __future__ import annotations

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
    assert ratchets.c_figures(C) == {"c": 3, "files": 1}


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
    old = table(package={"code": 9}, core={"code": 5})
    old["budgets"] = [{"room": "core", "code": 2, "reason": 'more "axes"'}]
    new = ratchets.lowered({"package": {"code": 10}, "core": {"code": 6}, "html": {"code": 1}}, old)
    assert (new["budgets"], new["spent"]) == ([], old["budgets"])
    assert new["figures"] == {"package": {"code": 9}, "core": {"code": 6}, "html": {"code": 1}}
    for own in (old, new):
        assert tomllib.loads(ratchets.table_text(own)) == own


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
