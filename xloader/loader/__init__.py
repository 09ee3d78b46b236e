"""The loader that a training loop iterates over: its batches, ranks, states and reports.

::

    loader.py                the loader
    planned_loader.py        the loader of one set of samples, and the runs that make its batches
    epoch_iterator.py        one epoch being carried out
    progress.py              counts of an epoch, for its report and its progress bar
    preview.py               a picture of the batch that comes next
    variance_measurement.py  the variance of batch means, measured on some batches of an epoch
    sweep_loader.py          one pass over samples in the order that reads fewest chunks
    interleaved/             loaders of several sets of samples, above all of these
    processes/               worker processes that finish batches
    ranks/                   one rank's part of a plan, its position and its state
    reports/                 measured epochs in words: report, bottleneck, advice, notes
    batches/                 batches and rows that a training loop is handed
"""
