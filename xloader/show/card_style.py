"""The style of cards. Colours follow the page: JupyterLab's, pydata's, Colab's, VS Code's.

Each card has a background of its own, so that it can be read whatever is behind it. The names of
its classes are repeated in selectors, because notebooks style tables with selectors that are nearly
as strong.
"""

from __future__ import annotations

from typing import Final

CARD_CLASS: Final = "xloader-card"

NUM_COLOURS: Final = 7
"""Number of colours that lanes and parts have in turn."""

_LIGHT_COLOURS: Final = (
    *("#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#d55e00", "#b5a800"),
)
"""Colours that colour-blind people can tell apart (Okabe and Ito, 2008), the yellow one darker."""
_DARK_COLOURS: Final = (
    *("#4aa3df", "#f0b43c", "#2fc49a", "#dd94ba", "#8fd0f5", "#f2834a", "#efe45a"),
)

_LIGHT_PAGES: Final = (
    'html[theme="light"]',
    'html[data-theme="light"]',
    'body[data-jp-theme-light="true"]',
    "body.vscode-light",
)
_DARK_PAGES: Final = (
    'html[theme="dark"]',
    'html[data-theme="dark"]',
    'body[data-theme="dark"]',
    'body[data-jp-theme-light="false"]',
    "body.vscode-dark",
)


def _colours(
    text: str, faint: str, line: str, back: str, cell: str, series: tuple[str, ...]
) -> str:
    """Variables of the colours, with a page's own colours first."""
    named = {
        "text": f"var(--jp-content-font-color0,var(--pst-color-text-base,{text}))",
        "faint": f"var(--jp-content-font-color2,var(--pst-color-text-muted,{faint}))",
        "line": f"var(--jp-border-color2,var(--pst-color-border,{line}))",
        "back": f"var(--jp-layout-color0,var(--pst-color-background,{back}))",
        "cell": cell,
        **{f"c{number}": colour for number, colour in enumerate(series)},
    }
    return "".join(f"--xloader-{name}:{value};" for name, value in named.items())


_LIGHT: Final = _colours("#111", "#5f5f5f", "#d0d0d0", "#fff", "#c4c4c4", _LIGHT_COLOURS)
_DARK: Final = _colours("#f2f2f2", "#b0b0b0", "#4a4a4a", "#161616", "#5c5c5c", _DARK_COLOURS)


def style_of_colours(name: str) -> str:
    """Rules that set the variables of the colours, for elements of a class, light and dark."""

    def on(pages: tuple[str, ...]) -> str:
        return ",".join(page if page.startswith(name) else f"{page} {name}" for page in pages)

    # The page's own choice comes last, and so beats that of the system.
    return (
        f"{name}{{{_LIGHT}}}"
        f"@media(prefers-color-scheme:dark){{{name}{{{_DARK}}}}}"
        f"{on(_LIGHT_PAGES)}{{{_LIGHT}}}{on(_DARK_PAGES)}{{{_DARK}}}"
    )


def _rules() -> str:
    card = f".{CARD_CLASS}"
    strong = card * 4
    rules = {
        card: "background:var(--xloader-back);color:var(--xloader-text);max-width:900px;"
        "box-sizing:border-box;padding:6px 10px;font-size:13px;line-height:1.45;"
        "font-family:var(--jp-content-font-family,system-ui,sans-serif);text-align:left",
        f"{card} .xloader-head": "padding:2px 0 5px;margin-bottom:4px;"
        "border-bottom:1px solid var(--xloader-line);font-size:14px;overflow-wrap:anywhere",
        f"{card} .xloader-head span,{card} summary span": "color:var(--xloader-faint);"
        "margin-left:6px;font-weight:normal",
        f"{strong} details": "margin:2px 0;padding:0;border:0;background:none;box-shadow:none",
        f"{strong} summary": "display:list-item;cursor:pointer;padding:2px 0;margin:0;"
        "background:none;color:inherit;font-weight:normal;overflow-wrap:anywhere",
        f"{strong} summary:hover": "color:var(--xloader-c0)",
        f"{strong} details>div": "padding:0 0 4px 14px",
        f"{strong} p": "margin:3px 0;overflow-wrap:anywhere;color:inherit",
        f"{strong} .xloader-wide": "overflow-x:auto",
        f"{strong} table": "border-collapse:collapse;border:0;margin:2px 0 4px;font-size:inherit;"
        "width:auto;min-width:0;color:inherit;table-layout:auto;display:table",
        f"{strong} tr,{strong} thead,{strong} tbody": "background:none;border:0",
        f"{strong} th,{strong} td": "padding:1px 14px 1px 0;border:0;text-align:left;"
        "vertical-align:top;background:none;color:inherit;max-width:none;line-height:inherit;"
        "white-space:normal",
        f"{strong} th": "font-weight:normal;color:var(--xloader-faint);min-width:6em;"
        "max-width:16em;overflow-wrap:break-word",
        f"{strong} td": "overflow-wrap:anywhere",
        f"{strong} [title]": "cursor:help;text-decoration:underline dotted;"
        "text-underline-offset:3px",
        f"{strong} thead th": "border-bottom:1px solid var(--xloader-line)",
        f"{strong} .xloader-wide th,{strong} .xloader-wide td": "white-space:nowrap;min-width:0;"
        "overflow-wrap:normal",
        f"{strong} .xloader-number": "text-align:right;font-variant-numeric:tabular-nums",
        f"{strong} .xloader-marked td": "font-weight:bold",
        f"{strong} figure": "margin:4px 0 6px;padding:0",
        f"{strong} figcaption": "color:var(--xloader-faint);font-size:12px;margin:2px 0 0;"
        "text-align:left;font-style:normal",
        f"{strong} svg": "display:block;max-width:100%;height:auto;margin:0",
        f"{strong} .xloader-key": "display:inline-block;margin-right:12px;"
        "color:var(--xloader-text)",
        f"{strong} .xloader-key i": "display:inline-block;width:10px;height:10px;"
        "margin-right:4px;vertical-align:-1px;background:currentColor",
        f"{card} .xloader-cell": "fill:none;stroke:var(--xloader-cell);color:var(--xloader-cell)",
        f"{card} .xloader-ground": "fill:var(--xloader-cell);color:var(--xloader-cell);opacity:.45",
        f"{card} .xloader-ink": "fill:none;stroke:var(--xloader-text);color:var(--xloader-text)",
    }
    for number in range(NUM_COLOURS):
        colour = f"var(--xloader-c{number})"
        rules[f"{card} .xloader-c{number}"] = f"fill:{colour};color:{colour}"
    return "".join(f"{name}{{{text}}}" for name, text in rules.items())


CARD_STYLE: Final = style_of_colours(f".{CARD_CLASS}") + _rules()
"""The style sheet of a card."""
