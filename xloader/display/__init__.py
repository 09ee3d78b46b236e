"""How samples, batches and loaders are shown: the cards of notebooks, and pictures of samples.

::

    sample_cards.py     the facts of samples, which their text has too
    window_drawings.py  the window of the first sample on the grid of chunks
    batch_cards.py      the fields and rows of a batch
    loader_cards.py     the options of a loader, its explanation and its report
    time_bars.py        where the time of an epoch went
    sample_panels.py    maps and lines of samples: which panels a picture has
    plot_axes.py        axes with labels, units and dates
    coastlines.py       coastlines for maps

These files know samples. The rooms ``html`` and ``plots``, which draw what they hand over, do not.
Nothing is planned or read here, except coastlines. What figures show stands with the figures.
"""
