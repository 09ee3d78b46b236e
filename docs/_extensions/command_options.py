"""The directive ``command-options``: what ``--help`` says of each command, as tables."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import click
from docutils import nodes
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective

Rows = list[tuple[str, str]]
"""Options or commands as they are written, and what they do."""


class HelpTables(click.HelpFormatter):
    """A formatter that keeps the tables of a help text in place of writing them.

    Commands group their options themselves, so this sees the groups that ``--help`` shows.
    """

    def __init__(self) -> None:
        # Usage that is wrapped would show the lines of a terminal.
        super().__init__(width=10_000)
        self.tables: dict[str, Rows] = {}
        self._title = ""

    @contextmanager
    def section(self, name: str) -> Iterator[None]:
        self._title = name
        yield

    def write_dl(self, rows: Sequence[tuple[str, str]], *_args: Any, **_kwargs: Any) -> None:
        self.tables.setdefault(self._title, []).extend(rows)


@dataclass(frozen=True)
class CommandHelp:
    """The help of one command.

    Parameters
    ----------
    name : str
        The command with the program's name, such as ``xloader inspect``.
    usage : str
        How it is called.
    paragraphs : tuple of str
        Its description. One that begins with ``"\\b"`` keeps its lines.
    tables : dict of str to list of (str, str)
        Its options, by group.
    """

    name: str
    usage: str
    paragraphs: tuple[str, ...]
    tables: dict[str, Rows] = field(default_factory=dict)


def command_helps(command: click.Command, name: str) -> list[CommandHelp]:
    """Return the help of a command and of the commands below it."""
    context = click.Context(command, info_name=name, **command.context_settings)
    formatter = HelpTables()
    command.format_options(context, formatter)
    usage = " ".join([name, *command.collect_usage_pieces(context)])
    text = inspect.cleandoc(command.help or "")
    own = CommandHelp(name, usage, tuple(text.split("\n\n")), formatter.tables)
    below = getattr(command, "commands", {})
    return [own, *(part for key in below for part in command_helps(below[key], f"{name} {key}"))]


def paragraph_of(text: str) -> nodes.paragraph:
    """Return a paragraph whose options are literals, because a dash in prose becomes longer."""
    parts = re.split(r"(--[a-z][\w-]*(?:=\S*\w)?)", text)
    kinds = (nodes.Text, lambda own: nodes.literal(text=own))
    return nodes.paragraph("", "", *(kinds[n % 2](own) for n, own in enumerate(parts) if own))


def row_of(name: nodes.Node, meaning: str) -> nodes.row:
    """Return a row of a table: a name, and what it does."""
    cells = (nodes.paragraph("", "", name), paragraph_of(meaning))
    return nodes.row("", *(nodes.entry("", cell) for cell in cells))


def table_of(command: str, title: str, rows: Rows) -> nodes.table:
    """Return a table with a column of options or commands and one of their meaning."""
    columns = [nodes.colspec(colwidth=width) for width in (35, 65)]
    head = nodes.thead("", row_of(nodes.Text(title), "Meaning"))
    body = nodes.tbody()
    for option, meaning in rows:
        name = nodes.literal(text=option)
        if not option.startswith("-"):
            name = nodes.reference("", "", name, refid=nodes.make_id(f"{command} {option}"))
        body += row_of(name, meaning)
    group = nodes.tgroup("", *columns, head, body, cols=2)
    return nodes.table("", group, classes=["command-options"])


def section_of(help_: CommandHelp) -> nodes.section:
    """Return a section that shows the help of a command."""
    section = nodes.section("", nodes.title(text=help_.name), ids=[nodes.make_id(help_.name)])
    section += nodes.literal_block(text=help_.usage, language="text")
    for paragraph in help_.paragraphs:
        if not paragraph.startswith("\b"):
            section += paragraph_of(" ".join(paragraph.split()))
            continue
        _, title, *lines = paragraph.splitlines()
        section += nodes.paragraph(text=title)
        section += nodes.literal_block(text=inspect.cleandoc("\n".join(lines)), language="sh")
    section += [table_of(help_.name, title, rows) for title, rows in help_.tables.items()]
    return section


class CommandOptions(SphinxDirective):
    """A section for each command of xloader."""

    def run(self) -> list[nodes.Node]:
        from xloader import cli

        # The page is made again when a command changes, or this file.
        for path in (Path(__file__), *Path(cli.__file__).parent.glob("*.py")):
            self.env.note_dependency(str(path))
        sections = [section_of(help_) for help_ in command_helps(cli.main, "xloader")]
        for section in sections:
            self.state.document.note_explicit_target(section)
        return list(sections)


def setup(app: Sphinx) -> dict[str, Any]:
    app.add_directive("command-options", CommandOptions)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
