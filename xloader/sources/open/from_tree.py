"""Makes a source of an open ``xr.DataTree``: the variables of all of its groups."""

from __future__ import annotations

from collections.abc import Iterable

import xarray as xr

from xloader.core.messages import closest
from xloader.errors import OptionError, UnknownNameError, UnsupportedDataError
from xloader.sources import catalog
from xloader.sources.base import Source
from xloader.sources.open.from_dataset import from_dataset
from xloader.sources.stores.redaction import safe_name
from xloader.sources.zarr.missing_chunks import OnMissing


def from_tree(
    tree: xr.DataTree,
    variables: Iterable[str] | str | None,
    on_missing: OnMissing = "warn",
) -> Source:
    """Make a source of an open tree of groups of any backing."""
    from xloader.sources.combined.join_sources import tree_source

    groups = {_path(tree, node): node.to_dataset() for node in tree.subtree}
    offered = {
        _join(path, str(name)): (path, str(name))
        for path, dataset in groups.items()
        for name, array in dataset.data_vars.items()
        if catalog.is_readable(array.dtype)
    }
    file = safe_name(str(tree.encoding.get("source") or ""))
    name = f"an open DataTree of {file}" if file else "an open DataTree"
    if not offered:
        raise UnsupportedDataError(
            f"{name} has no numeric data variable",
            given=f"the groups {', '.join(groups) or '/'}",
            allowed="bool, integer and float data variables",
            remedy="convert variables with xarray's astype",
        )
    chosen: dict[str, list[str]] = {}
    asked = _asked(variables, list(offered), name)
    for one in asked:
        path, own = offered[one]
        chosen.setdefault(path, []).append(own)
    # The names of the root come first: only those of groups below can be told apart by a path.
    sources = {
        path: from_dataset(dataset, chosen[path], on_missing)
        for path, dataset in groups.items()
        if path in chosen
    }
    return tree_source(sources, name, asked)


def _asked(variables: Iterable[str] | str | None, offered: list[str], source: str) -> list[str]:
    """The names asked for, each once."""
    if variables is None:
        return offered
    asked = [variables] if isinstance(variables, str) else list(dict.fromkeys(variables))
    if not asked:
        raise OptionError(
            "variables= is empty",
            given=asked,
            allowed=", ".join(offered),
            remedy="leave variables= out to take them all",
        )
    for name in asked:
        if name not in offered:
            close = closest(name, offered)
            raise UnknownNameError(
                f"{source} has no data variable of numbers with this path",
                given=name,
                allowed=", ".join(offered),
                remedy=f"did you mean {close!r}?" if close else "pass one of these paths",
            )
    return asked


def _path(tree: xr.DataTree, node: xr.DataTree) -> str:
    """Path of a group within the tree that was passed, which may be a branch of a larger one."""
    path = node.relative_to(tree)
    return "" if path == "." else path


def _join(path: str, name: str) -> str:
    return f"{path}/{name}" if path else name
