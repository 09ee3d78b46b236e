"""The engine: reads the chunks of a planned epoch and makes its batches.

It loads blocks of decoded chunks, copies rows of them into batches, and delivers the batches in
order. It does not import torch. The main modules, each built on those before it:

- `buffers`: memory of chunks and batches
- `block_reader`, `block_table`, `block_loads`: reading blocks and keeping them in memory
- `gather`: copying rows into batches
- `assembly`: these parts, made for the samples of a recipe
- `step_needs`: which blocks each step needs
- `open_batches`: batches under way, in trays of several
- `run`: the threads

`cached_reader` and `sample_reader` read samples without a plan.
"""
