"""The part of a plan that one rank carries out, its position in it, and its state."""
