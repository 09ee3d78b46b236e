"""The demo behind ``xloader demo``: from a chunked store to a trained forecast model.

Its files, each using only those above it::

    waves.py     synthetic weather made of moving waves, as a Zarr store that is made once
    task.py      variables, the split of time, normalised samples, and weights of maps
    training.py  the network, its training, and errors beside persistence and climatology
    run.py       the whole demo, from its data to the picture
"""
