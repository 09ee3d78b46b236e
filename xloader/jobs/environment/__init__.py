"""The machine and the libraries that xloader runs on: the checks of ``xloader doctor``."""
