"""The engine: carries out the program of an epoch, and so makes its batches.

It does not import torch. The main modules, each built on those before it:

- `buffers`, `slot_layout`, `shared_slots`: memory of chunks and batches
- `block_layout`, `block_reader`: which chunks make a block, and where their values lie
- `field_places`: where fields lie in batches, and how numbers become values
- `assembly`, `tables`: these parts, made for the samples of a recipe; as whole numbers for C
- `program`: what is loaded, copied and delivered, and in which order
- `native_executor`, `plain_executor`: carry out a program
- `python_loads`, `fetches_ahead`, `finishes`: what Python does of it
- `run`: one program being carried out

`cached_reader` makes the program of any ids as they are asked for; `sample_reader` needs none.
"""
