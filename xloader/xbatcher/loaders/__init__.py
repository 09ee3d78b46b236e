"""Package for `xloader.xbatcher.loaders.torch`, so that import paths match those of xbatcher."""
