"""Makes a plan within a memory budget, and says beforehand what an epoch costs."""
