"""The pages of names: their signatures, and the tables of the members of classes."""

from __future__ import annotations

import inspect
import posixpath
import re
from collections.abc import Iterator
from pkgutil import resolve_name
from typing import Any

from bs4 import BeautifulSoup
from sphinx.application import Sphinx
from sphinx.config import Config
from sphinx.util.inspect import safe_getattr

MADE_BY_XLOADER = {
    "Advice",
    "Batch",
    "Explanation",
    "Loader",
    "Materialized",
    "Mosaic",
    "Report",
    "Rng",
    "Samples",
}
"""Classes that users do not call: how they are made is no part of the reference."""

IN_FULL = {"Mosaic": ("write",)}
"""Methods without a page of their own whose whole text is on the page of their class."""

INTERNAL = {
    "Loader": ("batch_sampler", "collate_fn", "dataset", "options", "prefetch_factor", "sampler"),
    "Batch": ("require_ids",),
    "Rollout": ("num_samples", "plan"),
    "Samples": ("recipe",),
    "ChunkSampler": ("num_replicas", "num_samples", "rank", "steps", "total_size"),
}
"""Members that other parts of the library use."""

NAMES = "reference/names/"
"""Where the pages of names lie."""

SECTION = re.compile(r"^(\w[\w ]+)\n-{3,}\n", re.MULTILINE)
FIELD = re.compile(r"^(\S[^\n]*?)(?: : ([^\n]*))?\n((?:(?: {4}[^\n]*)?\n)+)", re.MULTILINE)


def sections_of(docstring: str) -> dict[str, str]:
    """Return the parts of a numpydoc text by title; what comes first is called ``""``."""
    first, *rest = SECTION.split(docstring)
    return {"": first, **dict(zip(rest[::2], rest[1::2], strict=True))}


def first_line(value: Any) -> str:
    """Return the first line of a docstring."""
    return (inspect.getdoc(value) or "").partition("\n")[0].replace("`Samples", "`~Samples")


def field_rows(kind: type) -> Iterator[tuple[str, str]]:
    """Yield the fields of a class of results, those of its bases first: names, and meanings.

    A report leaves the fields of its base to the page of the explanation.
    """
    for base in [kind] if kind.__name__ == "Report" else reversed(kind.__mro__):
        parts = sections_of(inspect.cleandoc(vars(base).get("__doc__") or ""))
        if base.__module__.startswith("xloader."):
            for title in ("Parameters", "Attributes"):
                for names, type_, text in FIELD.findall(parts.get(title, "") + "\n"):
                    if names not in INTERNAL.get(kind.__name__, ()):
                        label = ", ".join(f"``{name}``" for name in names.split(", "))
                        yield label + f" : {type_}" * bool(type_), inspect.cleandoc(text)


def members_of(kind: type, pages: set[str]) -> Iterator[tuple[str, Any]]:
    """Yield the public members of a class, but for xarray's and those of a base with a page."""
    for key in dir(kind):
        home = next(base for base in kind.__mro__ if key in vars(base))
        is_ours = home.__module__.startswith("xloader.") and home.__name__ != "RecordedMethods"
        is_ours &= home is kind or f"xloader.{home.__name__}" not in pages
        if key[0] != "_" and is_ours and key not in INTERNAL.get(kind.__name__, ()):
            yield key, inspect.getattr_static(kind, key)


def member_rows(fullname: str, pages: set[str]) -> Iterator[tuple[str, str]]:
    """Yield the fields of a class, and the members that are shown nowhere in full."""
    kind = resolve_name(fullname)
    fields = [*field_rows(kind)] if kind.__name__ in MADE_BY_XLOADER else []
    yield from fields
    listed = " ".join(names for names, _ in fields)
    shown = {f"{fullname}.{name}" for name in IN_FULL.get(fullname.removeprefix("xloader."), ())}
    methods = []
    for key, member in members_of(kind, pages):
        if f"{fullname}.{key}" in shown | pages or f"``{key}``" in listed:
            continue
        if isinstance(member, property) or hasattr(member, "attrname"):
            yield f"``{key}``", first_line(member)
        elif inspect.isroutine(member) or isinstance(member, classmethod | staticmethod):
            call = f"``{key}{call_of(kind, key)}``"
            methods.append((call, first_line(safe_getattr(kind, key))))
    yield from methods


def call_of(kind: type, name: str) -> str:
    """Return the parameters of a method, without types."""
    parameters = [*inspect.signature(getattr(kind, name)).parameters.values()]
    shown = [p.replace(annotation=p.empty) for p in parameters if p.name != "self"]
    return str(inspect.Signature(shown)).replace(" -> None", "")


def function_rows(fullname: str) -> list[tuple[str, str]]:
    """Return the functions of a module with the first line of each."""
    module = resolve_name(fullname)
    names = {name: getattr(module, name) for name in module.__all__}
    return [(f"``{name}{inspect.signature(fn)}``", first_line(fn)) for name, fn in names.items()]


def summary_of(fullname: str) -> str:
    """Return the first line of a docstring as plain text."""
    text = (inspect.getdoc(resolve_name(fullname)) or "").partition("\n")[0]
    return re.sub(r":\w+:`~?([^`]*)`", r"\1", text).replace("`", "")


def clean_signature(
    _app: Sphinx, what: str, name: str, _value: Any, _options: Any, signature: Any, returns: Any
) -> tuple[str, None] | None:
    """Hide how results are made, and what says nothing to a reader."""
    if what == "class" and name.rpartition(".")[2] in MADE_BY_XLOADER:
        return "", None
    if not signature:
        return None
    signature = re.sub(r"mappingproxy\((\{.*?\})\)", r"\1", signature)
    signature = re.sub(r"PlanRules\([^)]*\)", "PlanRules()", signature)
    return re.sub(r", \*\*unknown\b", "", signature), None


def clean_text(
    _app: Sphinx, what: str, name: str, value: Any, _options: Any, lines: list[str]
) -> None:
    """Leave fields to the table, and call the options that few need "Advanced"."""
    text = "\n".join(lines)
    parts = sections_of(text)
    if what == "class" and getattr(value, "__name__", "") in MADE_BY_XLOADER:
        for title in ("Parameters", "Attributes"):
            parts.pop(title, None)
    first = parts.pop("")
    named = {title.replace("Other Parameters", "Advanced"): part for title, part in parts.items()}
    lines[:] = first.splitlines()
    for title, part in named.items():
        lines += ["", title, "-" * len(title), *part.splitlines()]


def names_of(index: str) -> list[str]:
    """Return the full names in the tables of the index."""
    module, names = "xloader", []
    for line in index.splitlines():
        if match := re.match(r"\.\. currentmodule:: (\S+)", line):
            module = match[1]
        elif match := re.fullmatch(r"   ([\w.]+)", line):
            names.append(f"{module}.{match[1]}")
    return names


def fill_pages(app: Sphinx, config: Config) -> None:
    """Give the templates what the page of each name shows besides its docstring."""
    names = names_of(app.srcdir.joinpath("reference", "api.md").read_text("utf-8"))
    pages = {}
    for name in names:
        value, rows = resolve_name(name), []
        if inspect.isclass(value):
            rows = [*member_rows(name, {*names})]
        elif inspect.ismodule(value):
            rows = function_rows(name)
        pages[name] = {
            "summary": summary_of(name),
            "full": IN_FULL.get(name.removeprefix("xloader."), ()),
            "methods": [other for other in names if other.startswith(f"{name}.")],
            "rows": [(label, text.splitlines() or [""]) for label, text in rows],
        }
    config.autosummary_context = {"pages": pages}


def shorten_sidebar(
    _app: Sphinx, page: str, _template: str, context: dict[str, Any], _tree: Any
) -> None:
    """Leave the pages of names out of the list beside a page: the index has them by purpose."""
    if not page.startswith("reference/"):
        return
    make = context["generate_toctree_html"]

    def without_names(kind: str, *args: Any, **options: Any) -> BeautifulSoup:
        # The theme keeps what it has made for other pages.
        soup = BeautifulSoup(str(make(kind, *args, **options)), "html.parser")
        for item in soup("li"):
            target = posixpath.normpath(posixpath.join(posixpath.dirname(page), item.a["href"]))
            if target.startswith(NAMES):
                item.decompose()
            elif page.startswith(NAMES) and target == "reference/api.html":
                item["class"] = [*item.get("class", []), "current", "active"]
        return soup

    context["generate_toctree_html"] = without_names


def setup(app: Sphinx) -> dict[str, Any]:
    app.setup_extension("sphinx.ext.autodoc")
    app.setup_extension("sphinx.ext.napoleon")
    app.setup_extension("sphinx.ext.autosummary")
    app.connect("config-inited", fill_pages)
    app.connect("autodoc-process-signature", clean_signature)
    # Before napoleon, which reads the sections.
    app.connect("autodoc-process-docstring", clean_text, priority=400)
    # After the theme.
    app.connect("html-page-context", shorten_sidebar, priority=900)
    app.config.napoleon_custom_sections = [("Advanced", "params_style")]
    return {"version": "2", "parallel_read_safe": True, "parallel_write_safe": True}
