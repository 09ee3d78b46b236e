"""The demo behind ``xloader demo``: from a chunked store to a trained forecast model.

Its files, each using only those above it::

    waves.py     synthetic weather made of moving waves, block by block
    store.py     the same as a Zarr store, made once and cached
    task.py      the forecast task: variables, dims, the split of time, and weights of maps
    climate.py   mean, standard deviation and mask of the training part
    model.py     the network
    training.py  samples and network for one store, training for some steps, and scores
    baseline.py  the same epoch through a plain torch dataset
    run.py       the whole demo, from its options and data to the picture
"""
