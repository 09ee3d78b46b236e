"""Cards of figures: the same rows and tables as their text, and a drawing where one is cheap."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from xloader.show.cards import Card, CardPart, CardSection, CardTable, Facts


class TitledRows(Protocol):
    """Figures that are shown as a title and rows of a heading and a text; see `FigureTable`."""

    def _title(self) -> str: ...

    def _rows(self) -> list[tuple[str, str]]: ...


def figure_parts(figures: TitledRows) -> list[CardPart]:
    """The parts of a card of figures."""
    draw, tables = getattr(figures, "_drawings", list), getattr(figures, "_sections", list)
    hints: Mapping[str, str] = getattr(figures, "_hints", dict)()
    parts: list[CardPart] = [Facts(figures._rows(), hints), *draw()]
    titled: list[tuple[str, Sequence[Sequence[str]]]] = tables()
    for title, rows in titled:
        name, _, rest = title.partition(": ")
        table = CardTable(rows[0], rows[1:], hints=hints)
        parts.append(CardSection(name, [table], summary=rest))
    sets: Mapping[str, TitledRows] = getattr(figures, "sets", {})
    return parts + [
        CardSection(name, figure_parts(set_figures), is_open=False, summary="this set alone")
        for name, set_figures in sets.items()
    ]


def figure_card(figures: TitledRows) -> Card:
    """The card of some figures."""
    kind, _, rest = figures._title().partition(": ")
    return Card(kind, rest, figure_parts(figures))
