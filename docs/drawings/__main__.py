"""Make the drawings of the concept pages and of the benchmarks: `python docs/drawings`.

Those of concepts show what the library really plans for a small example. Each is written twice, for
light and for dark pages. `python docs/drawings FOLDER` writes them elsewhere.
"""

from __future__ import annotations

import sys
from pathlib import Path

from canvas import THEMES
from chunk_pictures import draw_chunks, draw_orders, draw_pace
from lane_pictures import draw_restart
from memory_pictures import draw_memory
from speed_pictures import draw_speeds

DRAWINGS = (draw_chunks, draw_orders, draw_pace, draw_memory, draw_restart, draw_speeds)


def write_drawings(folder: Path) -> None:
    """Write all drawings into a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    for draw in DRAWINGS:
        drawing = draw()
        for theme in THEMES:
            path = folder / f"{drawing.name}-{theme}.svg"
            path.write_text(drawing.render(theme), "utf-8")


if __name__ == "__main__":
    default = Path(__file__).parents[1] / "_static" / "concepts"
    write_drawings(Path(sys.argv[1]) if sys.argv[1:] else default)
