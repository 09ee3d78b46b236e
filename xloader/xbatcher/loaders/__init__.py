"""Where xbatcher has its datasets for PyTorch: `xloader.xbatcher.loaders.torch`."""
