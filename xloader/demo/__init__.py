"""The demo behind ``xloader demo``: from a chunked store to a trained forecast model.

From the ground up::

    waves.py     a world of moving waves, made block by block
    store.py     that world as a Zarr store, made once and cached
    task.py      what is forecast from what: variables, dims, the split of time
    maps.py      weights, axes and labels of maps
    climate.py   mean, spread and mask of the training part
    scores.py    RMSE of the forecast, of persistence and of climatology
    model.py     the network
    training.py  its training for a number of steps, and its evaluation
    baseline.py  the same epoch through a plain torch dataset
    picture.py   truth, forecast and errors as maps
    options.py   what the demo can be told
    run.py       the whole story
"""
