"""Drawings from plain arrays and names. Matplotlib is imported here, when something is drawn.

::

    canvas.py      an empty picture, the colours, and lines of many points
    maps.py        the fields of samples: maps, lines and single values side by side
    coverage.py    how often an epoch has each element
    residences.py  which chunk is in memory when, and how many regions a batch draws from
    plans.py       reads and mixing of several plans against their memory
    stages.py      the stages of a loader over time

No file here reads data or knows of samples: others hand over arrays and names. They import these
files inside the functions that draw.
"""
