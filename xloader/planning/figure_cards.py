"""Cards of figures: the same rows and tables as their text, and a drawing where one is cheap."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from xloader.html.cards import Card, CardPart, CardSection, CardTable, Drawing, Facts


class TitledRows(Protocol):
    """Figures that are shown as a title and rows of a heading and a text; see `FigureTable`."""

    def _title(self) -> str: ...

    def _rows(self) -> list[tuple[str, str]]: ...


def figure_parts(figures: TitledRows) -> list[CardPart]:
    """The parts of a card of figures: drawings, rows, and tables if the figures have any.

    Parameters
    ----------
    figures : FigureTable
        The figures. ``_drawings()`` gives drawings, and ``_sections()`` titled tables whose first
        row holds the headings; figures may lack both.
    """
    draw, tables = getattr(figures, "_drawings", list), getattr(figures, "_sections", list)
    drawings: list[Drawing] = draw()
    found: list[CardPart] = [Facts(figures._rows()), *drawings]
    titled: list[tuple[str, Sequence[Sequence[str]]]] = tables()
    return found + [CardSection(title, [CardTable(rows[0], rows[1:])]) for title, rows in titled]


def figure_card(figures: TitledRows) -> Card:
    """The card of some figures.

    Parameters
    ----------
    figures : FigureTable
        The figures.
    """
    kind, _, rest = figures._title().partition(": ")
    return Card(kind, rest, figure_parts(figures))
