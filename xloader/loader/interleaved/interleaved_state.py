"""States of a loader of several sets: its own step, and the state of each set's loader."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from xloader.errors import StateError
from xloader.loader.ranks.cursor import Position
from xloader.loader.ranks.state import VERSION, another_option, check_form, sign, unusable_state
from xloader.planning.interleaving import Interleaving

_KEYS: Final = ("version", "epoch", "step", "interleave", "sets", "check")


def make_state(
    position: Position, interleaving: Interleaving, parts: Mapping[str, Any]
) -> dict[str, Any]:
    """Make the state at a position."""
    return sign(
        {
            "version": VERSION,
            "epoch": position.epoch,
            "step": position.step,
            "interleave": _describe(interleaving, list(parts)),
            "sets": dict(parts),
        }
    )


def read_parts(
    state: object, interleaving: Interleaving, names: Sequence[str]
) -> tuple[Position, dict[str, Any]]:
    """Check that a loader can continue from a state, but for the states of its sets."""
    if not isinstance(state, Mapping) or "version" not in state:
        raise unusable_state("it is not a state of xloader", type(state).__name__)
    if "interleave" not in state:
        raise StateError(
            "this is the state of a loader of one set",
            given=f"a state with the keys {', '.join(map(str, state))}",
            allowed="a value of state_dict() of a loader that xloader.interleave made",
            remedy="load it into the loader of that set",
        )
    check_form(state, _KEYS, ("epoch", "step"))
    _check_same(state["interleave"], _describe(interleaving, names))
    if state["step"] > interleaving.num_steps:
        raise unusable_state(
            f"its step is beyond the {interleaving.num_steps} steps of an epoch", state["step"]
        )
    # Where the loader of each set begins follows from the step, whatever their own states say.
    if not isinstance(state["sets"], Mapping) or not set(names) <= state["sets"].keys():
        raise unusable_state("it lacks the state of a set", type(state["sets"]).__name__)
    return Position(state["epoch"], state["step"]), dict(state["sets"])


def _describe(interleaving: Interleaving, names: Sequence[str]) -> dict[str, Any]:
    """Everything that fixes which set gives which row of which step."""
    return {
        "sets": list(names),
        "weights": list(interleaving.pattern.weights),
        "num_samples": interleaving.num_samples,
        "drop_last": interleaving.drop_last,
        "patterns": interleaving.dealers,
        "lanes": interleaving.lanes,
        "rows_of_a_pattern": interleaving.step_rows,
    }


def _check_same(saved: object, own: Mapping[str, Any]) -> None:
    counts = ("patterns", "lanes", "rows_of_a_pattern")
    if not isinstance(saved, Mapping) or not all(type(saved.get(n)) is int for n in counts):
        raise unusable_state("it does not say which set gives which rows", type(saved).__name__)
    others = [name for name in own if saved.get(name) != own[name]]
    if not others:
        return
    if others[0] in counts:
        ranks, batch = own["patterns"], own["patterns"] * own["rows_of_a_pattern"]
        raise StateError(
            "the state was saved with another number of ranks, processes or lanes, or another "
            "batch_size, so that rows would come from other sets",
            given=f"{ranks} ranks or lanes, {own['lanes']} lanes, a global batch of {batch}",
            allowed=f"{saved['patterns']} ranks or lanes, {saved['lanes']} lanes, a global batch "
            f"of {saved['patterns'] * saved['rows_of_a_pattern']}",
            remedy="use as many ranks and processes, and the same batch_size; a training that may "
            "go on with another number of ranks needs lanes= from its start, and the same "
            "batch_size * world_size",
        )
    name = others[0]
    raise another_option(
        {"sets": "list of sets", "weights": "ratio of weights"}.get(name, name),
        own[name],
        saved.get(name),
        "interleave the same sets, in the same order and with the same weights and num_samples, "
        "and pass the same drop_last",
    )
