"""Tables of plain text, with their columns aligned."""

from __future__ import annotations

from collections.abc import Sequence

from xloader.errors import printable


def align_columns(rows: Sequence[Sequence[str]], num_left: int = 1) -> str:
    """Return rows of cells as lines of text, with columns of equal width.

    Parameters
    ----------
    rows : sequence of sequence of str
        The rows, the head first. All have the same number of cells.
    num_left : int
        Number of columns that begin at the left. The others, which hold numbers, end at the right.

    Returns
    -------
    str
        One line for each row.

    Examples
    --------
    >>> print(align_columns([("variable", "mean"), ("t2m", "278.4"), ("u10", "-0.1")]))
    variable    mean
    t2m        278.4
    u10         -0.1
    """
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
