"""Carries a plan out: loads blocks, gathers rows into batches, delivers batches in order.

Knows no torch. From the ground up: `pool` (memory), `blocks` (reading), `gather` (copying),
`steps` (who needs what), `run` (threads).
"""
