"""What xloader costs, beside the machine's limit and beside others: ``python -m benchmarks``."""
