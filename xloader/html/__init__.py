"""HTML for notebooks and pages, made from plain texts and numbers. It has no script.

::

    cards.py        a card: a title and sections of facts, tables, drawings and notes
    card_style.py   the colours of cards, light and dark
    svg_shapes.py   shapes of inline drawings, in the colours of cards
    chunk_grid.py   the window of a sample on the grid of chunks
    stay_strips.py  which chunk is in memory when
    count_strips.py how often elements come
    share_bars.py   parts of a whole, side by side
    pages.py        whole pages of cards

No file here reads data or knows of samples: others hand over texts and arrays. Everything that they
hand over is escaped.
"""
