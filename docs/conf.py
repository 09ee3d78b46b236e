"""How the documentation is built: `make docs`."""

from __future__ import annotations

from importlib.metadata import version as installed_version

project = "xloader"
author = "The xloader developers"
version = release = installed_version("xloader")

extensions = [
    "myst_nb",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx.ext.viewcode",
    "sphinx_design",
]
exclude_patterns = ["_build", "generated", "jupyter_execute"]
myst_enable_extensions = ["colon_fence", "deflist"]
myst_heading_anchors = 3
# The examples of these pages run in the tests, where a failure names its line.
nb_execution_mode = "off"
suppress_warnings = ["mystnb.unknown_mime_type"]

autodoc_member_order = "bysource"
autodoc_typehints = "none"
autodoc_default_options = {"show-inheritance": True}
napoleon_google_docstring = False
napoleon_use_ivar = True

html_theme = "pydata_sphinx_theme"
html_title = "xloader"
html_show_sourcelink = False
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_theme_options = {"secondary_sidebar_items": ["page-toc"], "show_prev_next": True}
