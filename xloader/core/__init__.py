"""Arithmetic that needs no data: axes, windows, subsets, footprints, packing, ranks, options."""
