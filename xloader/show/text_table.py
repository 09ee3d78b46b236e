"""Tables of plain text, with their columns aligned."""

from __future__ import annotations

from collections.abc import Sequence

from xloader.errors import printable


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
