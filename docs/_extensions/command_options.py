"""The directive ``command-options``: what ``--help`` says of commands, as tables."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

import click
from docutils import nodes
from docutils.parsers.rst import directives
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective

Rows = list[tuple[str, str]]
"""Options or commands as they are written, and what they do."""


class HelpRows(click.HelpFormatter):
    """A formatter that keeps the rows of a help text in place of writing them."""

    def __init__(self) -> None:
        # Usage that is wrapped would show the lines of a terminal.
        super().__init__(width=10_000)
        self.rows: Rows = []

    def write_dl(self, rows: Sequence[tuple[str, str]], *_args: Any, **_kwargs: Any) -> None:
        self.rows.extend(rows)


def paragraph_of(text: str) -> nodes.paragraph:
    """Return a paragraph whose options are literals, because a dash in prose becomes longer."""
    parts = re.split(r"(--[a-z][\w-]*(?:=\S*\w)?)", text)
    kinds = (nodes.Text, lambda own: nodes.literal(text=own))
    return nodes.paragraph("", "", *(kinds[n % 2](own) for n, own in enumerate(parts) if own))


def row_of(name: nodes.Node, meaning: str) -> nodes.row:
    """Return a row of a table: a name, and what it does."""
    cells = (nodes.paragraph("", "", name), paragraph_of(meaning))
    return nodes.row("", *(nodes.entry("", cell) for cell in cells))


def table_of(rows: Rows) -> nodes.table:
    """Return a table with a column of options or commands and one of their meaning."""
    columns = [nodes.colspec(colwidth=width) for width in (35, 65)]
    body = nodes.tbody("", *(row_of(nodes.literal(text=name), text) for name, text in rows))
    group = nodes.tgroup("", *columns, body, cols=2)
    return nodes.table("", group, classes=["command-options"])


class CommandOptions(SphinxDirective):
    """A table of the options of one command, or of the commands of xloader.

    ``:only:`` names it; ``:options:`` are those to show, by default all commands.
    """

    option_spec: ClassVar = {"only": directives.unchanged, "options": directives.unchanged}

    def run(self) -> list[nodes.Node]:
        from xloader import cli

        # The page is made again when a command changes, or this file.
        for path in (Path(__file__), *Path(cli.__file__).parent.glob("*.py")):
            self.env.note_dependency(str(path))
        rows = rows_of(self.options["only"], self.options.get("options", "").split())
        return [table_of(rows)]


def rows_of(command: str, chosen: Sequence[str] = ()) -> Rows:
    """Return options of a command in the order asked for, or the commands of the program."""
    from xloader import cli

    _, *below = command.split()
    shown = cli.main.commands[below[0]] if below else cli.main
    formatter = HelpRows()
    context = click.Context(shown, info_name=command, **shown.context_settings)
    shown.format_options(context, formatter)
    rows = formatter.rows
    if not chosen:
        return [(f"{command} {name}", text) for name, text in rows if name[0] != "-"]
    named = {name.split()[0]: (name, text) for name, text in rows}
    return [named[name] for name in chosen]


def setup(app: Sphinx) -> dict[str, Any]:
    app.add_directive("command-options", CommandOptions)
    return {"version": "2", "parallel_read_safe": True, "parallel_write_safe": True}
