"""Samples as text and as HTML, and what is said of verbs and reads in a wrong place."""

from __future__ import annotations

import sys
from types import FrameType

from xloader.core.messages import show_count, warn_caller
from xloader.errors import OptionError, WorkersWarning
from xloader.recipe.recipe import Recipe
from xloader.transforms.normalize import in_words


def as_text(recipe: Recipe) -> str:
    """Text that describes the samples: a title, then one line for each property."""
    from xloader.show.cards import facts_text
    from xloader.show.sample_cards import sample_facts

    rows = [row for rows in sample_facts(recipe).values() for row in rows]
    return facts_text(f"xloader.Samples, {_size(recipe)}", rows)


def as_html(recipe: Recipe) -> str:
    """HTML that describes the samples: the rows of the text, and a drawing of a window."""
    from xloader.show.cards import Card
    from xloader.show.sample_cards import sample_parts

    return Card("xloader.Samples", _size(recipe), sample_parts(recipe)).to_html()


def last_verb(recipe: Recipe) -> str:
    """Name of the last step that a recipe records, for error messages."""
    if recipe.steps:
        return in_words(recipe.steps[-1])
    if recipe.fields:
        return f"the field {recipe.fields[-1].name!r}"
    return "window" if recipe.windows else "open"


def _size(recipe: Recipe) -> str:
    return "no windows yet" if recipe.windows is None else show_count(recipe.num_ids, "sample")


def require_before(recipe: Recipe, verb: str, is_too_late: bool) -> None:
    """Refuse a verb that comes too late."""
    if is_too_late:
        raise OptionError(
            f"{verb} comes too late",
            given=f"after {last_verb(recipe)}",
            allowed="first sel, isel and forcing, then window once, then inputs, targets and "
            "field, at_points, normalize and fillna, then map and recorded methods",
            remedy=f"call .{verb}(...) earlier in the chain",
        )


def require_windows_before(recipe: Recipe, verb: str) -> None:
    """Refuse a transform that is recorded before there are windows."""
    if recipe.windows is None:
        raise OptionError(
            f"{verb} comes too early",
            given="samples without windows",
            remedy="call .window(...) first; or change the data with xarray, and open the Dataset",
        )


_TORCH_DATA = "torch.utils.data."


_has_warned = False
"""Whether this process has given the warning already."""


def warn_of_no_plan() -> None:
    """Warn once in a process if a ``DataLoader`` reads samples one by one.

    It is called at each read of ``samples[...]``, and takes little time beside the read. PyTorch
    is not imported: its code is recognised by the module names on the call stack.
    """
    global _has_warned
    frame: FrameType | None = sys._getframe(2)
    # torch's Subset may lie between; a Subset that is indexed by hand gives no warning.
    while frame is not None and frame.f_globals.get("__name__", "").startswith(_TORCH_DATA):
        if is_fetcher(frame):
            break
        frame = frame.f_back
    else:
        return
    if _has_warned:
        return
    _has_warned = True
    worker = sys.modules["torch.utils.data"].get_worker_info()
    if worker is None or worker.id == 0:
        warn_caller(
            "a DataLoader reads these samples one by one, and each sample reads its chunks again: "
            "iterate over samples.loader(...); if you need a DataLoader, use "
            "xloader.torch.data_loader(samples, ...); if you use your own sampler, pass "
            "xloader.torch.MapDataset(samples) to the DataLoader",
            WorkersWarning,
        )


def is_fetcher(frame: FrameType) -> bool:
    """Whether a frame runs the code with which a ``DataLoader`` gets items of a dataset."""
    return frame.f_globals.get("__name__") == f"{_TORCH_DATA}_utils.fetch"
