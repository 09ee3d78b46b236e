"""The demo behind ``xloader demo``: from a chunked store to a trained forecast model.

Its files, each using only those above it::

    waves.py     synthetic weather made of moving waves
    store.py     the same as a Zarr store, made once and cached
    task.py      variables, the split of time, normalised samples, and weights of maps
    model.py     the network
    training.py  training for some steps, and errors beside persistence and climatology
    run.py       the whole demo, from its data to the picture
"""
