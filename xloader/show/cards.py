"""A card: what is shown of an object, as a frozen model, as text and as HTML.

::

    Loader  12 batches of 32, epoch 0         title and summary
    v epoch                                   a section, which opens and closes
        samples   384 in 12 batches           facts
        [=====    ====  ]                     a drawing
    > samples                                 a closed section

Cards need neither script nor style: where a viewer takes the style away, as for notebooks that are
not trusted, headings and tables remain.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from html import escape
from importlib.resources import files
from textwrap import indent
from typing import Final

from xloader.errors import printable

CARD_CLASS: Final = "xloader-card"


def read_style(name: str) -> str:
    """A style sheet of this folder in one line, without the comment that it begins with."""
    text = files("xloader.show").joinpath(name).read_text("utf-8")
    return "".join(line.strip() for line in text.partition("*/")[2].splitlines())


CARD_STYLE: Final = read_style("style.css")


def align_columns(rows: Sequence[Sequence[str]], num_left: int = 1) -> str:
    """Return rows of cells as lines of text, with columns of equal width."""
    rows = [[printable(cell, kept="") for cell in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = []
    for row in rows:
        cells = [
            cell.ljust(width) if column < num_left else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        lines.append("   ".join(cells).rstrip())
    return "\n".join(lines)


@dataclass(frozen=True)
class Facts:
    """Pairs of a heading and a text, one below the other."""

    rows: Sequence[tuple[str, str]]
    hints: Mapping[str, str] = field(default_factory=dict)

    def to_text(self) -> str:
        """Lines of text, with the texts below each other."""
        rows = [[printable(cell, kept="") for cell in row] for row in self.rows]
        width = max((len(name) for name, _ in rows), default=0)
        return "\n".join(f"{name:<{width}}  {text}".rstrip() for name, text in rows)

    def to_html(self) -> str:
        """The HTML of the facts."""
        # The attributes hold where styles are taken away.
        rows = [
            f'<tr valign="top"><th align="left"{_hint(name, self.hints)}>{escape(name)}</th>'
            f"<td>{escape(text)}</td></tr>"
            for name, text in self.rows
        ]
        return f"<table>{''.join(rows)}</table>" if rows else ""


@dataclass(frozen=True)
class CardTable:
    """A table, with a heading above each column unless there are none."""

    heads: Sequence[str]
    rows: Sequence[Sequence[str]]
    num_left: int = 1
    marked: Sequence[int] = ()
    hints: Mapping[str, str] = field(default_factory=dict)

    def to_text(self) -> str:
        """Lines of text, with columns of equal width."""
        heads = [self.heads] if self.heads else []
        return align_columns([*heads, *self.rows], self.num_left)

    def to_html(self) -> str:
        """The HTML of the table."""
        heads = f"<thead><tr>{self._cells(self.heads, 'th')}</tr></thead>" if self.heads else ""
        rows = []
        for number, cells in enumerate(self.rows):
            kind = ' class="xloader-marked"' if number in self.marked else ""
            rows.append(f"<tr{kind}>{self._cells(cells, 'td')}</tr>")
        return (
            f'<div class="xloader-wide"><table>{heads}<tbody>{"".join(rows)}</tbody></table></div>'
        )

    def _cells(self, cells: Sequence[str], tag: str) -> str:
        left, right = ' align="left"', ' class="xloader-number" align="right"'
        heads_rows = bool(self.heads) and not self.heads[0]
        cells_html = []
        for column, cell in enumerate(cells):
            side = left if column < self.num_left else right
            is_head = tag == "th" or (heads_rows and not column)
            hint = _hint(cell, self.hints) if is_head else ""
            cells_html.append(f"<{tag}{side}{hint}>{escape(cell)}</{tag}>")
        return "".join(cells_html)


@dataclass(frozen=True)
class Words:
    """Paragraphs of text."""

    texts: Sequence[str]

    def to_text(self) -> str:
        """A line of text for each paragraph."""
        return printable("\n".join(self.texts))

    def to_html(self) -> str:
        """The HTML of the paragraphs."""
        return "".join(f"<p>{escape(text)}</p>" for text in self.texts)


@dataclass(frozen=True)
class Drawing:
    """A small inline drawing with words below it."""

    svg: str
    caption: str
    legend: Sequence[tuple[str, str]] = ()

    def to_text(self) -> str:
        """Nothing: what a drawing shows, facts and tables say as well."""
        return ""

    def to_html(self) -> str:
        """The HTML of the drawing."""
        keys = "".join(
            f'<span class="xloader-key"><i class="{kind}"></i>{escape(name)}</span> '
            for kind, name in self.legend
        )
        words = f"<span>{escape(self.caption)}</span>" if self.caption else ""
        return f"<figure>{self.svg}<figcaption>{keys}{words}</figcaption></figure>"


@dataclass(frozen=True)
class CardSection:
    """A part of a card that opens and closes."""

    title: str
    parts: Sequence[CardPart]
    is_open: bool = True
    summary: str = ""

    def to_text(self) -> str:
        """Lines of text below the title, of an open section."""
        text = text_of(self.parts) if self.is_open else ""
        title = printable(_titled(self.title, self.summary), kept="")
        return f"\n{title}\n{indent(text, '  ')}" if text else ""

    def to_html(self) -> str:
        """The HTML of the section."""
        beside = f" <span>{escape(self.summary)}</span>" if self.summary else ""
        return (
            f"<details{' open' if self.is_open else ''}><summary><b>{escape(self.title)}</b>"
            f"{beside}</summary><div>{_joined(self.parts)}</div></details>"
        )


CardPart = Facts | CardTable | Words | Drawing | CardSection


@dataclass(frozen=True)
class Card:
    """All that is shown of an object."""

    title: str
    summary: str = ""
    parts: Sequence[CardPart] = ()

    def to_text(self) -> str:
        """The card as text, without drawings and closed sections."""
        text = indent(text_of(self.parts), "  ")
        return f"{printable(_titled(self.title, self.summary))}\n{text}".rstrip()

    def to_html(self) -> str:
        """The HTML of the card, with its style."""
        summary = f" <span>{escape(self.summary)}</span>" if self.summary else ""
        return printable(
            f'<div class="{CARD_CLASS}"><style>{CARD_STYLE}</style>'
            f'<div class="xloader-head"><b>{escape(self.title)}</b>{summary}</div>'
            f"{_joined(self.parts)}</div>"
        )


def text_of(parts: Iterable[CardPart]) -> str:
    """Parts of a card as lines of text."""
    return "\n".join(text for part in parts if (text := part.to_text()))


def facts_text(title: str, rows: Sequence[tuple[str, str]]) -> str:
    """The text of an object that is no table: a title in brackets, and facts below it."""
    text = f"<{printable(title)}>\n{indent(Facts(rows).to_text(), '    ')}"
    return text.rstrip()


def _titled(title: str, summary: str) -> str:
    return f"{title}: {summary}" if summary else title


def _hint(heading: str, hints: Mapping[str, str]) -> str:
    return f' title="{escape(hints[heading])}"' if heading in hints else ""


def _joined(parts: Iterable[CardPart]) -> str:
    return "".join(part.to_html() for part in parts)
