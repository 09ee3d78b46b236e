"""The demo behind ``xloader demo``: from a chunked store to a trained forecast model.

Its files, each using only those above it::

    waves.py     synthetic weather made of moving waves, block by block
    store.py     the same as a Zarr store, made once and cached
    task.py      the forecast task: variables, dims, and the split of time
    maps.py      weights and labels of maps
    climate.py   mean, standard deviation and mask of the training part
    scores.py    RMSE of the forecast, of persistence and of climatology
    model.py     the network
    training.py  its training for a number of steps, and its evaluation
    assembly.py  samples and network for one store
    baseline.py  the same epoch through a plain torch dataset
    picture.py   truth, forecast and errors as maps
    options.py   the options of the demo
    run.py       the whole demo, from data to picture
    ranked.py    one rank of a training that can be stopped and restarted
    restart.py   a training that is killed on two ranks and continued on one
"""
