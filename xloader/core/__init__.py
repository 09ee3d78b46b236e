"""Basic arithmetic and checks that read no data.

Axes, windows, subsets, footprints, packing, random numbers, ranks, options and messages.
"""
