"""What a shuffle is worth to learning: the same training with different orders of its samples.

Its files, each using only those above it::

    orders.py    the orders, as sample ids of each epoch, and what they read
    forecast.py  variables, the split of time, normalised samples, and weights of maps
    network.py   a small network that forecasts maps from maps
    cases.py     the data sets: moving waves, and a store that the user names
    training.py  one training, from initial weights to the error on the validation set
    runs.py      all trainings, and the file that keeps those that are done
    table.py     the paired differences, as a table and as a curve
"""
