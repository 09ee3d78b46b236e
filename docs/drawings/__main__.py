"""Make the drawings of concepts, guides and benchmarks: `python docs/drawings`.

Those of concepts show what the library really plans for a small example. Each is written twice,
for light and for dark pages. `python docs/drawings FOLDER` writes them elsewhere.
"""

from __future__ import annotations

import sys
from pathlib import Path

from canvas import THEMES
from chunk_pictures import draw_chunks, draw_orders, draw_pace
from guide_pictures import draw_gap, draw_patches, draw_split, draw_window
from lane_pictures import draw_restart
from memory_pictures import draw_memory
from speed_pictures import draw_losses, draw_speeds

CONCEPTS = (draw_chunks, draw_orders, draw_pace, draw_memory, draw_restart)
GUIDES = (draw_window, draw_gap, draw_split, draw_patches)
DRAWINGS = {"concepts": CONCEPTS, "guides": GUIDES, "benchmarks": (draw_speeds, draw_losses)}


def write_drawings(folder: Path) -> None:
    """Write all drawings into the folders of their pages."""
    for pages, drawings in DRAWINGS.items():
        (folder / pages).mkdir(parents=True, exist_ok=True)
        for draw in drawings:
            drawing = draw()
            for theme in THEMES:
                path = folder / pages / f"{drawing.name}-{theme}.svg"
                path.write_text(drawing.render(theme), "utf-8")


if __name__ == "__main__":
    default = Path(__file__).parents[1] / "_static"
    write_drawings(Path(sys.argv[1]) if sys.argv[1:] else default)
