"""The texts of options: ``time=1979:2017,level=500,850`` becomes slices, lists and numbers.

All options that name dimensions or variables are written in one way: ``name=value``, several of
them separated by commas. A value without a name belongs to the name before it, so that lists need
no brackets. A colon makes a slice, as in Python.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import click

from xloader.errors import OptionError

Texts = tuple[str, ...]
"""The values of one name, or the values of an option that may be given several times."""

_INTEGER: Final = re.compile(r"-?\d+")
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
                raise _unreadable(option, f"{option} {text}", problem=problem)
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


def _unreadable(
    option: str, given: str | None, example: str = "", problem: str = "cannot be read"
) -> OptionError:
    example = example or _EXAMPLES.get(option, "time=24,lat=90")
    remedy = f"write for example {option} {example}"
    return OptionError(f"the option {option} {problem}", given=given, remedy=remedy)


def plain_or_pairs(option: str, texts: Sequence[str], read: Callable[[str], Any]) -> Any:
    """Read ``6``, which holds for all dimensions, or ``time=6,lat=64``."""
    if len(texts) == 1 and "=" not in texts[0]:
        return read(texts[0].strip())
    pairs = split_pairs(option, texts)
    for name, values in pairs.items():
        if len(values) > 1:
            problem, example = f"has several values for {name!r}", f"{name}={values[0]}"
            raise _unreadable(option, ",".join(values), example, problem)
    return {name: read(value) for name, (value,) in pairs.items()}


def read_size(text: str) -> int | str:
    """Read a number of elements, or leave a duration such as ``3D`` as it is."""
    return int(text) if _INTEGER.fullmatch(text) else text


def read_pad(text: str) -> float | str:
    """Read a number, or leave ``edge`` and ``reflect`` as they are."""
    try:
        return float(text)
    except ValueError:
        return text


def read_selection(values: Texts, read: Callable[[str], Any] = read_size) -> Any:
    """Read one value, a slice or a list of values."""
    if len(values) > 1:
        listed = [value for value in values if value]
        if any(len(_parts_of(value)) > 1 for value in listed):
            raise _bad_slice(",".join(values))
        return [read(value) for value in listed]
    parts = _parts_of(values[0])
    if len(parts) == 1:
        return read(parts[0])
    if len(parts) > 3 or (len(parts) == 3 and not _INTEGER.fullmatch(parts[2] or "1")):
        raise _bad_slice(values[0])
    begin, end = (read(part) if part else None for part in parts[:2])
    return slice(begin, end, int(parts[2]) if parts[2:] and parts[2] else None)


def read_selections(
    option: str, texts: Sequence[str], read: Callable[[str], Any] = read_size
) -> dict[str, Any]:
    """Read what is selected of each dimension."""
    pairs = split_pairs(option, texts)
    return {dim: read_selection(values, read) for dim, values in pairs.items()}


def _bad_slice(text: str) -> OptionError:
    return OptionError(
        "a slice cannot be read",
        given=text,
        remedy="write begin:end or begin:end:step, such as time=1979:2017 or "
        "time=2001-01-01T06:00:2001-02-01T12:00; or values, such as level=500,850",
    )


def _parts_of(text: str) -> list[str]:
    """The text cut at its colons, except those within the time of day of a date."""
    hidden = _CLOCK.sub(lambda match: match[0].replace(":", "\0"), text)
    return [part.replace("\0", ":").strip() for part in hidden.split(":")]


def read_number(text: str) -> float:
    """Read a label that is a number: an int where it is whole."""
    try:
        return int(text) if _INTEGER.fullmatch(text) else float(text)
    except ValueError:
        raise OptionError(
            "a label is not a number, as the labels of this dimension are",
            given=repr(text),
            remedy="write for example --sel level=500, or --sel lat=30:60",
        ) from None


def read_fields(option: str, text: str) -> tuple[tuple[str, ...], dict[str, Any]]:
    """Read the variables and the offsets of a field: ``t2m,u10@time=0:2``."""
    names, at, offsets = text.partition("@")
    variables = split_names(names)
    if not variables or "=" in names or (at and not offsets.strip()):
        raise _unreadable(option, text)
    return variables, read_selections(option, [offsets]) if at else {}


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
            raise _unreadable(option, given, example) from None
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


def read_numbers(option: str, text: str | None) -> tuple[float, ...]:
    """Read numbers that are separated by commas."""
    try:
        return tuple(float(part) for part in split_names(text))
    except ValueError:
        raise _unreadable(option, text) from None


def read_counts(option: str, texts: Sequence[str]) -> dict[str, int] | None:
    """Read whole numbers by dimension, such as the sizes of chunks."""
    if not texts:
        return None
    counts = plain_or_pairs(option, texts, read_size)
    if not isinstance(counts, dict) or not all(isinstance(size, int) for size in counts.values()):
        raise _unreadable(option, " ".join(texts))
    return counts


def read_packing(texts: Sequence[str]) -> dict[str, Any] | None:
    """Read the integers that variables are packed to: ``t2m=int16`` or ``t2m=int16,0.01``."""
    packing: dict[str, Any] = {}
    for name, values in split_pairs("--pack", texts).items():
        dtype, *errors = values
        try:
            (error,) = map(float, errors) if errors else (None,)
        except ValueError:
            raise _unreadable("--pack", f"--pack {name}={','.join(values)}") from None
        packing[name] = dtype if error is None else (dtype, error)
    return packing or None
