"""PyTorch's side: the only code that imports torch, and only when it is called."""
