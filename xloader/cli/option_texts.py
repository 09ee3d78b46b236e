"""The texts of options: ``time=1979:2017,level=500,850`` becomes slices, lists and numbers.

All options that name dimensions or variables are written in one way: ``name=value``, several of
them separated by commas. A value without a name belongs to the name before it, so that lists need
no brackets. A colon makes a slice, as in Python.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any, Final

import click

from xloader.errors import OptionError

Texts = tuple[str, ...]
"""The values of one name, or the values of an option that may be given several times."""

Reader = Callable[[str], Any]

_CLOCK: Final = re.compile(
    # The hour of a date, and minutes, seconds and their fractions. Two digits that more digits
    # follow are the year after the colon of a slice.
    r"(?<=-\d\d)[T ]\d\d(?::\d\d(?!\d)(?::\d\d(?!\d)(?:\.\d+)?)?)?Z?"
)


takes_json: Final = click.option("--json", "is_json", is_flag=True, help="Print JSON.")


def option(
    flags: str, metavar: str, text: str, read: Callable[[Any], Any] | None = None, **settings: Any
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Decorate a command with an option, whose text is read by a function.

    `flags`: the option as it is written, and after a blank the name of the command's argument.
    """
    if read is not None:
        settings["callback"] = lambda _context, _option, value: read(value)
    return click.option(*flags.split(), metavar=metavar, help=text, **settings)


def split_names(text: str | None) -> Texts:
    """Split ``a,b`` into the names ``a`` and ``b``."""
    return tuple(name.strip() for name in (text or "").split(",") if name.strip())


def split_pairs(option: str, texts: Sequence[str]) -> dict[str, Texts]:
    """Split ``time=1979:2017,level=500,850`` into the values of each name."""
    pairs: dict[str, Texts] = {}
    for text in texts:
        name = ""
        for part in text.split(","):
            before, sign, value = part.partition("=")
            if sign:
                name = before.strip()
            if not name or (sign and name in pairs):
                problem = "names something twice" if name else "has a value without a name"
                raise unreadable(option, f"{option} {text}", problem=problem)
            pairs[name] = (*pairs.get(name, ()), (value if sign else part).strip())
    return pairs


_EXAMPLES: Final = {
    "--sel": "time=1979:2017,level=500",
    "--isel": "time=0:100",
    "--gaps": "time=allow, or --gaps allow for all dimensions",
    "--field": "past=t2m@time=0:2",
    "--inputs": "t2m,u10@time=0:2",
    "--targets": "t2m@time=5",
    "--quantiles": "0.01,0.99",
    "--pack": "t2m=int16, or t2m=int16,0.01",
}


def unreadable(
    option: str, given: str | None, example: str = "", problem: str = "cannot be read"
) -> OptionError:
    """The error for an option whose text has another form."""
    example = example or _EXAMPLES.get(option, "time=24,lat=90")
    remedy = f"write for example {option} {example}"
    return OptionError(f"the option {option} {problem}", given=given, remedy=remedy)


_FOR_ALL: Final = ("--window", "--stride", "--dilation", "--gaps")
"""Options whose value may stand without names of dimensions, and then holds for all."""


def read_number(text: str) -> float | str:
    """Read a number, a whole one as an int; or leave text such as ``3D`` and ``edge``."""
    for kind in (int, float):
        with suppress(ValueError):
            return kind(text)
    return text


def read_offset(text: str) -> float | str:
    """Read an offset. ``+6`` stays text: a number of steps after the window's last element."""
    return text if text.startswith("+") else read_number(text)


def read_label(text: str) -> float:
    """Read a label that is a number."""
    label = read_number(text)
    if isinstance(label, str):
        raise OptionError(
            "a label is not a number, as the labels of this dimension are",
            given=repr(text),
            remedy="write for example --sel level=500, or --sel lat=30:60",
        )
    return label


ONE: Final = (int, float, str)
"""The types of a value that is neither a slice nor a list."""


def read_pairs(
    option: str, texts: Sequence[str], read: Reader = read_number, types: Any = object
) -> Any:
    """Read the value, slice or list of each name, if it is of one of the types."""
    if option in _FOR_ALL and len(texts) == 1 and "=" not in texts[0]:
        return read(texts[0].strip())
    pairs = {}
    for name, values in split_pairs(option, texts).items():
        pairs[name] = read_values(values, read)
        if not isinstance(pairs[name], types):
            raise unreadable(option, f"{name}={','.join(values)}")
    return pairs


def read_values(values: Texts, read: Reader = read_number) -> Any:
    """Read one value, a slice or a list of values."""
    cut = [_parts_of(value) for value in values if value or len(values) == 1]
    if all(len(parts) == 1 for parts in cut):
        listed = [read(text) for (text,) in cut]
        return listed if len(values) > 1 else listed[0]
    if len(values) == 1 and len(cut[0]) <= 3:
        begin, end, step = (*cut[0], "")[:3]
        first, last = (read(text) if text else None for text in (begin, end))
        with suppress(ValueError):
            return slice(first, last, int(step) if step else None)
    raise OptionError(
        "a slice cannot be read",
        given=",".join(values),
        remedy="write begin:end or begin:end:step, such as time=1979:2017 or "
        "time=2001-01-01T06:00:2001-02-01T12:00; or values, such as level=500,850",
    )


def _parts_of(text: str) -> list[str]:
    """The text cut at its colons, except those within the time of day of a date."""
    hidden = _CLOCK.sub(lambda match: match[0].replace(":", "\0"), text)
    return [part.replace("\0", ":").strip() for part in hidden.split(":")]


def read_storage(option: str, texts: Sequence[str]) -> Mapping[str, Any] | None:
    """Read options of a file system: ``anon=true``, or JSON in braces.

    Values are text, because keys of accounts may be made of digits. The exceptions are ``true``,
    ``false``, ``null``, and JSON in braces or brackets.
    """
    options: dict[str, Any] = {}
    for text in texts:
        name, sign, value = text.partition("=")
        is_json = value in ("true", "false", "null") or value[:1] in ("{", "[")
        try:
            if not sign or not name or name in options:
                raise ValueError
            options[name] = json.loads(value) if is_json else value
        except ValueError:
            # The value may be a secret.
            given = f"a value of {name!r}" if sign else "text without an equals sign"
            example = "anon=true, each name once; a value may be JSON in braces"
            raise unreadable(option, given, example) from None
    return options or None


def read_part(text: str | None) -> tuple[int, int] | None:
    """Read ``3/8``, the fourth of eight parts."""
    if text is None:
        return None
    match = re.fullmatch(r"\s*(\d+)\s*/\s*(\d+)\s*", text)
    if match is None or not int(match[1]) < int(match[2]):
        raise OptionError(
            "the option --part is not one of the parts",
            given=text,
            remedy="write i/N with i from 0, such as 0/8 to 7/8. For a job array from 0, as in "
            "--array=0-7, pass --part $SLURM_ARRAY_TASK_ID/8; if it counts from 1, --part "
            "$((SLURM_ARRAY_TASK_ID - 1))/8",
        )
    return int(match[1]), int(match[2])


def read_packing(texts: Sequence[str]) -> dict[str, Any] | None:
    """Read the integers that variables are packed to: ``t2m=int16`` or ``t2m=int16,0.01``."""
    packing = read_pairs("--pack", texts)
    return {name: tuple(v) if isinstance(v, list) else v for name, v in packing.items()} or None
