"""The engine: reads the chunks of a planned epoch and makes its batches.

It loads blocks of decoded chunks, copies rows of them into batches, and delivers the batches in
order. It does not import torch. The main modules, each built on those before it:

- `buffers`: memory of chunks and batches
- `block_reader`: which chunks make a block, and reading them
- `field_places`: where fields lie in batches, and which variables are copied together
- `assembly`: these parts, made for the samples of a recipe
- `program`, `cache_program`: what is loaded, copied and delivered, and in which order
- `native_executor`, `plain_executor`: carry out a program
- `run`: one program being carried out, with what Python does of it

`cached_reader` and `sample_reader` read samples without a plan.
"""
