"""Whole pages of HTML that hold cards, light and dark as the reader's system is."""

from __future__ import annotations

import os
from html import escape
from typing import IO, Any

from xloader.errors import printable
from xloader.show.cards import CARD_CLASS, CARD_STYLE, read_style


def render_page(title: str, *shown: Any) -> str:
    """The text of a whole page; see `write_page`."""
    sections = []
    for each in shown:
        if isinstance(each, str):
            sections.append(f"<p>{escape(printable(each))}</p>")
            continue
        make = getattr(each, "_repr_html_", None) or getattr(each, "to_html", None)
        html = make() if callable(make) else f"<pre>{escape(printable(repr(each)))}</pre>"
        sections.append(f"<section>{html}</section>")
    name = escape(printable(title))
    return (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        '<meta name="color-scheme" content="light dark">\n'
        f"<title>{name}</title>\n<style>{CARD_STYLE}{read_style('page.css')}</style>\n"
        f'</head>\n<body class="{CARD_CLASS}">\n'
        f"<main>\n<h1>{name}</h1>\n" + "\n".join(sections) + "\n</main>\n</body>\n"
        "</html>\n"
    )


def write_page(target: str | os.PathLike[str] | IO[str], title: str, *shown: Any) -> None:
    """Write a page that shows objects as a notebook does. It needs no other file.

    Parameters
    ----------
    target : path or text file
        The file to write. A file at this path is replaced.
    title : str
        The title of the page.
    *shown : object
        What the page shows, from the top: objects as notebooks show them, strings as paragraphs,
        and objects without HTML as text.

    Raises
    ------
    OSError
        If the file cannot be written.

    Examples
    --------
    >>> import io
    >>> file = io.StringIO()
    >>> write_page(file, "Plans", "Two plans for <t2m>.")
    >>> "<p>Two plans for &lt;t2m&gt;.</p>" in file.getvalue()
    True
    """
    # The text is whole before a file is replaced.
    text = render_page(title, *shown)
    if isinstance(target, str | os.PathLike):
        with open(target, "w", encoding="utf-8") as file:
            file.write(text)
    else:
        target.write(text)
