"""Options of a loader by single names, for tests that change one of them at a time."""

from __future__ import annotations

from typing import Any

from xloader import OnDevice, PlanRules, World

GROUPS: dict[str, tuple[Any, dict[str, str]]] = {
    "plan": (PlanRules, {name: name for name in ("max_amplification", "lanes", "spread")}),
    "world": (World, {"rank": "rank", "world_size": "world_size"}),
    "device": (
        OnDevice,
        {
            "device": "device",
            "output_dtype": "dtype",
            "device_transform": "transform",
            "device_random": "random",
            "out": "out",
        },
    ),
}
"""By option of a loader, what groups others, and the single names of these."""


def grouped(**options: Any) -> dict[str, Any]:
    """Put options that are given by single names into their groups."""
    for group, (kind, names) in GROUPS.items():
        given = {own: options.pop(name) for name, own in names.items() if name in options}
        if given:
            options[group] = kind(**given)
    return options
