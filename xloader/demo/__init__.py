"""The demo behind ``xloader demo``: one training, fed from a chunked store in three ways.

Its files, each using only those above it::

    task.py      normalised samples of moving waves, and the plain dataset of the same samples
    training.py  the network, and its training for some seconds
    run.py       the whole demo, from its data to the picture
"""
