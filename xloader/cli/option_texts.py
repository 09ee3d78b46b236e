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

from xloader.errors import OptionError

Texts = tuple[str, ...]
"""The values of one name, or the values of an option that may be given several times."""

_INTEGER: Final = re.compile(r"-?\d+")
_CLOCK: Final = re.compile(
    # The hour of a date, and minutes, seconds and their fractions. Two digits that more digits
    # follow are the year after the colon of a slice.
    r"(?<=-\d\d)[T ]\d\d(?::\d\d(?!\d)(?::\d\d(?!\d)(?:\.\d+)?)?)?Z?"
)


def split_names(text: str | None) -> Texts:
    """Split ``a,b`` into the names ``a`` and ``b``.

    Examples
    --------
    >>> split_names("t2m, u10"), split_names(None)
    (('t2m', 'u10'), ())
    """
    return tuple(name.strip() for name in (text or "").split(",") if name.strip())


def split_pairs(option: str, texts: Sequence[str]) -> dict[str, Texts]:
    """Split ``time=1979:2017,level=500,850`` into the values of each name.

    Parameters
    ----------
    option : str
        The option, such as ``"--sel"``, for error messages.
    texts : sequence of str
        The option's texts; it may have been given several times.

    Returns
    -------
    dict of str to tuple of str
        The values of each name, in the order given. A comma at the end adds an empty value.

    Raises
    ------
    OptionError
        If a text has no name, or a name comes twice.

    Examples
    --------
    >>> split_pairs("--sel", ["time=1979:2017,level=500,850", "lat=60:30"])
    {'time': ('1979:2017',), 'level': ('500', '850'), 'lat': ('60:30',)}
    """
    pairs: dict[str, Texts] = {}
    for text in texts:
        name = ""
        for part in text.split(","):
            before, sign, value = part.partition("=")
            if sign:
                name = before.strip()
            if not name or (sign and name in pairs):
                problem = "names something twice" if name else "has a value without a name"
                raise OptionError(
                    f"the option {option} {problem}",
                    given=f"{option} {text}",
                    allowed="name=value, several of them separated by commas",
                    remedy=f"write for example {_EXAMPLES.get(option, option + ' time=24,lat=90')}",
                )
            pairs[name] = (*pairs.get(name, ()), (value if sign else part).strip())
    return pairs


_EXAMPLES: Final = {
    "--sel": "--sel time=1979:2017,level=500",
    "--isel": "--isel time=0:100",
    "--storage-option": "--storage-option anon=true",
    "--pack": "--pack t2m=int16",
    "--gaps": "--gaps time=allow, or --gaps allow for all dimensions",
}


def plain_or_pairs(option: str, texts: Sequence[str], read: Callable[[str], Any]) -> Any:
    """Read ``6``, which holds for all dimensions, or ``time=6,lat=64``.

    Parameters
    ----------
    option : str
        The option, for error messages.
    texts : sequence of str
        The option's texts.
    read : callable
        Converts the text of one value.

    Returns
    -------
    object
        The single value, or a dict of values by name.

    Raises
    ------
    OptionError
        If a name comes twice or has several values.

    Examples
    --------
    >>> plain_or_pairs("--stride", ["time=3D", "lat=32"], read_size)
    {'time': '3D', 'lat': 32}
    >>> plain_or_pairs("--stride", ["1"], read_size)
    1
    """
    if len(texts) == 1 and "=" not in texts[0]:
        return read(texts[0].strip())
    pairs = split_pairs(option, texts)
    for name, values in pairs.items():
        if len(values) > 1:
            raise OptionError(
                f"the option {option} has several values for {name!r}",
                given=",".join(values),
                allowed="one value for each name",
                remedy=f"write for example {option} {name}={values[0]}",
            )
    return {name: read(value) for name, (value,) in pairs.items()}


def read_size(text: str) -> int | str:
    """Read a number of elements, or leave a duration such as ``3D`` as it is.

    Examples
    --------
    >>> read_size("6"), read_size("3D"), read_size("+6")
    (6, '3D', '+6')
    """
    return int(text) if _INTEGER.fullmatch(text) else text


def read_pad(text: str) -> float | str:
    """Read a number, or leave ``edge`` and ``reflect`` as they are.

    Examples
    --------
    >>> read_pad("0"), read_pad("edge")
    (0.0, 'edge')
    """
    try:
        return float(text)
    except ValueError:
        return text


def read_selection(values: Texts, read: Callable[[str], Any] = read_size) -> Any:
    """Read one value, a slice or a list of values.

    Parameters
    ----------
    values : tuple of str
        The values of one dimension. One value and a comma make a list of one.
    read : callable
        Converts the text of one label or position.

    Returns
    -------
    object, slice or list
        The selection along the dimension.

    Raises
    ------
    OptionError
        If a slice has more than three parts, or slices are in a list.

    Examples
    --------
    >>> read_selection(("0:12:2",)), read_selection(("500", "850")), read_selection(("5",))
    (slice(0, 12, 2), [500, 850], 5)
    >>> read_selection(("2001-01-01T06:00:2001-03",), str)
    slice('2001-01-01T06:00', '2001-03', None)
    """
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


def _bad_slice(text: str) -> OptionError:
    return OptionError(
        "a slice cannot be read",
        given=text,
        allowed="begin:end or begin:end:step, where step is a whole number; or a list of values",
        remedy="write for example time=1979:2017, time=2001-01-01T06:00:2001-02-01T12:00 or "
        "level=500,850",
    )


def _parts_of(text: str) -> list[str]:
    """The text cut at its colons, except those within the time of day of a date."""
    hidden = _CLOCK.sub(lambda found: found[0].replace(":", "\0"), text)
    return [part.replace("\0", ":").strip() for part in hidden.split(":")]


def read_number(text: str) -> float:
    """Read a label that is a number: an int where it is whole.

    Raises
    ------
    OptionError
        If it is no number.

    Examples
    --------
    >>> read_number("500"), read_number("-0.25")
    (500, -0.25)
    """
    try:
        return int(text) if _INTEGER.fullmatch(text) else float(text)
    except ValueError:
        raise OptionError(
            "a label is not a number",
            given=repr(text),
            allowed="numbers, as the labels of this dimension are",
            remedy="write for example --sel level=500, or --sel lat=30:60",
        ) from None


def read_fields(option: str, text: str) -> tuple[tuple[str, ...], dict[str, Any]]:
    """Read the variables and the offsets of a field: ``t2m,u10@time=0:2``.

    Parameters
    ----------
    option : str
        The option, for error messages.
    text : str
        Variables, and after ``@`` positions within the window, or leads.

    Returns
    -------
    variables : tuple of str
        Names of variables.
    offsets : dict of str to (int, str, slice or list)
        The offsets along each dimension, as :meth:`xloader.Samples.field` takes them.

    Raises
    ------
    OptionError
        If there are no variables, or the offsets cannot be read.

    Examples
    --------
    >>> read_fields("--inputs", "t2m,u10@time=0:2")
    (('t2m', 'u10'), {'time': slice(0, 2, None)})
    >>> read_fields("--targets", "t2m@time=+10D")
    (('t2m',), {'time': '+10D'})
    """
    names, at, offsets = text.partition("@")
    variables = split_names(names)
    if not variables or "=" in names or (at and not offsets.strip()):
        raise OptionError(
            f"the option {option} cannot be read",
            given=text,
            allowed="variables, separated by commas; after an @, positions within the window",
            remedy="write for example --inputs t2m,u10@time=0:2 --targets t2m@time=5, or "
            "--field past=t2m@time=0:2 for a field with another name",
        )
    pairs = split_pairs(option, [offsets]) if at else {}
    return variables, {dim: read_selection(values) for dim, values in pairs.items()}


def read_storage(option: str, texts: Sequence[str]) -> Mapping[str, Any] | None:
    """Read options of a file system: ``anon=true``, or JSON in braces.

    Values are text, because keys of accounts may be made of digits. The exceptions are ``true``,
    ``false``, ``null``, and JSON in braces or brackets.

    Raises
    ------
    OptionError
        If a text has no name, or JSON cannot be read. No value is in the message.

    Examples
    --------
    >>> read_storage("--storage-option", ["anon=true", 'kwargs={"region": "eu-1"}', "key=012"])
    {'anon': True, 'kwargs': {'region': 'eu-1'}, 'key': '012'}
    """
    found: dict[str, Any] = {}
    for text in texts:
        name, sign, value = text.partition("=")
        is_json = value in ("true", "false", "null") or value[:1] in ("{", "[")
        try:
            if not sign or not name or name in found:
                raise ValueError
            found[name] = json.loads(value) if is_json else value
        except ValueError:
            raise OptionError(
                f"the option {option} cannot be read",
                # The value may be a secret.
                given=f"a value of {name!r}" if sign else "text without an equals sign",
                allowed="name=value, each name once; true, false, null, text, or JSON in braces",
                remedy=f"write for example {option} anon=true",
            ) from None
    return found or None


def read_part(text: str | None) -> tuple[int, int] | None:
    """Read ``3/8``, the fourth of eight parts.

    Raises
    ------
    OptionError
        If it is no such text, or there are not so many parts.

    Examples
    --------
    >>> read_part("0/8"), read_part(None)
    ((0, 8), None)
    """
    if text is None:
        return None
    found = re.fullmatch(r"\s*(\d+)\s*/\s*(\d+)\s*", text)
    if found is None or not int(found[1]) < int(found[2]):
        raise OptionError(
            "the option --part is not one of the parts",
            given=text,
            allowed="i/N, where i counts from 0: 0/8, 1/8, ... 7/8",
            remedy="number a job array from 0, as in --array=0-7 with "
            "--part $SLURM_ARRAY_TASK_ID/8; if it counts from 1, pass "
            "--part $((SLURM_ARRAY_TASK_ID - 1))/8",
        )
    return int(found[1]), int(found[2])


def read_numbers(option: str, text: str | None) -> tuple[float, ...]:
    """Read numbers that are separated by commas.

    Raises
    ------
    OptionError
        If one is no number.

    Examples
    --------
    >>> read_numbers("--quantiles", "0.01,0.99"), read_numbers("--quantiles", None)
    ((0.01, 0.99), ())
    """
    try:
        return tuple(float(part) for part in split_names(text))
    except ValueError:
        raise OptionError(
            f"the option {option} cannot be read",
            given=text,
            allowed="numbers, separated by commas",
            remedy=f"write for example {option} 0.01,0.99",
        ) from None


def read_counts(option: str, texts: Sequence[str]) -> dict[str, int] | None:
    """Read whole numbers by dimension, such as the sizes of chunks.

    Raises
    ------
    OptionError
        If a number is not whole, or a dimension comes twice.

    Examples
    --------
    >>> read_counts("--chunks", ["time=24,lat=90"]), read_counts("--chunks", [])
    ({'time': 24, 'lat': 90}, None)
    """
    if not texts:
        return None
    found = plain_or_pairs(option, texts, read_size)
    if not isinstance(found, dict) or not all(isinstance(size, int) for size in found.values()):
        raise OptionError(
            f"the option {option} cannot be read",
            given=" ".join(texts),
            allowed="a whole number for each dimension",
            remedy=f"write for example {option} time=24,lat=90",
        )
    return found


def read_packing(texts: Sequence[str]) -> dict[str, Any] | None:
    """Read the integers that variables are packed to: ``t2m=int16`` or ``t2m=int16,0.01``.

    Raises
    ------
    OptionError
        If a text cannot be read.

    Examples
    --------
    >>> read_packing(["t2m=int16", "u10=int16,0.01"])
    {'t2m': 'int16', 'u10': ('int16', 0.01)}
    """
    found: dict[str, Any] = {}
    for name, values in split_pairs("--pack", texts).items():
        dtype, *errors = values
        try:
            (error,) = map(float, errors) if errors else (None,)
        except ValueError:
            raise OptionError(
                "the option --pack cannot be read",
                given=f"--pack {name}={','.join(values)}",
                allowed="name=dtype, or name=dtype,error",
                remedy="write for example --pack t2m=int16,0.01",
            ) from None
        found[name] = dtype if error is None else (dtype, error)
    return found or None
