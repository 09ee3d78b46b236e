"""How the documentation is built: `make docs`."""

from __future__ import annotations

import os
import shutil
import sys
from importlib.metadata import version as installed_version
from pathlib import Path

from sphinx.application import Sphinx
from sphinx.domains.python import PyObject

sys.path.insert(0, str(Path(__file__).parent / "_extensions"))

project = "xloader"
author = "The xloader developers"
version = release = installed_version("xloader")

extensions = [
    "command_options",
    "for_assistants",
    "reference_names",
    "myst_nb",
    "sphinx.ext.autodoc",
    "sphinx.ext.autosummary",
    "sphinx.ext.napoleon",
    "sphinx_copybutton",
    "sphinx_design",
]
exclude_patterns = [
    "_build",
    "_extensions",
    "jupyter_execute",
    "**/.ipynb_checkpoints",
]
myst_enable_extensions = ["colon_fence", "deflist"]
myst_heading_anchors = 3
# The examples of these pages run in the tests, where a failure names its line.
nb_execution_mode = "off"
suppress_warnings = ["mystnb.unknown_mime_type"]

# The tables of the reference make a page of each of their names.
autosummary_generate = True
templates_path = ["_templates"]
autodoc_member_order = "bysource"
autodoc_typehints = "none"
napoleon_google_docstring = False
napoleon_use_ivar = True
napoleon_use_rtype = False
# A function of many options shows one in each line.
maximum_signature_line_length = 88
toc_object_entries_show_parents = "hide"

# Types of other libraries become links where their sites can be reached; a build needs no network.
if os.environ.get("DOCS_ONLINE") or os.environ.get("READTHEDOCS"):
    extensions.append("sphinx.ext.intersphinx")
    intersphinx_mapping = {
        "dask": ("https://docs.dask.org/en/stable/", None),
        "numpy": ("https://numpy.org/doc/stable/", None),
        "python": ("https://docs.python.org/3/", None),
        "torch": ("https://docs.pytorch.org/docs/stable/", None),
        "xarray": ("https://docs.xarray.dev/en/stable/", None),
        "zarr": ("https://zarr.readthedocs.io/en/stable/", None),
    }

linkcheck_ignore = [r"http://localhost", r"http://127\.0\.0\.1"]
linkcheck_timeout = 20
linkcheck_workers = 4

# What a prompt precedes is copied, and without it.
copybutton_prompt_text = r">>> |\.\.\. |\$ "
copybutton_prompt_is_regexp = True
copybutton_line_continuation_character = "\\"

html_theme = "pydata_sphinx_theme"
html_title = f"xloader {release}"
html_favicon = "_static/favicon.svg"
html_show_sourcelink = False
html_context = {
    "github_user": "xloader",
    "github_repo": "xloader",
    "github_version": "main",
    "doc_path": "docs",
}
html_static_path = ["_static"]
html_css_files = ["reference.css", "site.css"]
html_search_scorer = str(Path(__file__).with_name("search_scorer.js"))
html_theme_options = {
    "github_url": "https://github.com/xloader/xloader",
    "logo": {"text": f"xloader {release}"},
    "navbar_align": "left",
    # A section has no page of its own that a line of parents could name.
    "article_header_start": [],
    "navigation_depth": 2,
    "navigation_with_keys": False,
    "secondary_sidebar_items": ["page-toc", "edit-this-page"],
    "search_as_you_type": True,
    "use_edit_page_button": True,
    "show_prev_next": True,
    "show_toc_level": 2,
}


def copy_notebooks(_app: Sphinx) -> None:
    """Make the notebooks pages of the site, in a folder that holds nothing else."""
    docs = Path(__file__).parent
    shutil.rmtree(docs / "notebooks", ignore_errors=True)
    (docs / "notebooks").mkdir()
    for path in (docs.parent / "notebooks").glob("*.ipynb"):
        shutil.copy2(path, docs / "notebooks")


def setup(app: Sphinx) -> None:
    app.connect("builder-inited", copy_notebooks)
    # Sphinx calls the attributes of a class its variables, which are something else in this field.
    for field in PyObject.doc_field_types:
        if field.name == "variable":
            field.label = "Attributes"
