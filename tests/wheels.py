"""Look at built packages: ``python -m tests.wheels dist again``.

Both folders hold what two builds of the same sources have made, the sdist and a wheel for each
platform. It prints them, and ends with an error if one is not what its name says.
"""

from __future__ import annotations

import json
import struct
import subprocess
import sys
import zipfile
from pathlib import Path

from hatch_build import TARGETS

_LIBRARY = "xloader/compiled/_compiled.so"

_ELF, _MACH = {62: "x86_64", 183: "aarch64"}, {0x01000007: "x86_64", 0x0100000C: "arm64"}
"""The machine by its number in the header of a library, of Linux and of macOS."""


def _machine_of(library: bytes) -> str:
    """The system and the machine that a library is for."""
    if library.startswith(b"\x7fELF"):
        return f"linux {_ELF[struct.unpack_from('<H', library, 18)[0]]}"
    magic, machine = struct.unpack_from("<II", library)
    assert magic == 0xFEEDFACF, hex(magic)
    return f"macos {_MACH[machine]}"


def _check(wheel: Path) -> None:
    """Check that a wheel has the library of its platform, and the metadata of one."""
    tag = wheel.stem.split("-", 2)[2]
    platform = tag.split("-")[2]
    with zipfile.ZipFile(wheel) as opened:
        assert opened.testzip() is None
        names = opened.namelist()
        (about,) = [name for name in names if name.endswith(".dist-info/WHEEL")]
        told = opened.read(about).decode()
        assert f"Tag: {tag}\n" in told, told
        assert f"Root-Is-Purelib: {str(platform == 'any').lower()}" in told, told
        assert (_LIBRARY in names) == (platform != "any"), names
        if platform != "any":
            system = "macos" if platform.startswith("macosx") else "linux"
            machine = platform.split("_", 3)[3]
            assert _machine_of(opened.read(_LIBRARY)) == f"{system} {machine}", platform
    if "linux_" in platform:
        _audit(wheel, platform)


def _audit(wheel: Path, platform: str) -> None:
    """Check that a library asks no more of a Linux than its platform promises."""
    # Not beside the libraries of this machine: they are of one kind, and the wheels of several.
    nowhere = str(wheel.parent / "nowhere")
    command = (
        sys.executable,
        "-m",
        "auditwheel",
        "show",
        "--json",
        "--ldpaths",
        nowhere,
        str(wheel),
    )
    told = json.loads(subprocess.run(command, check=True, capture_output=True).stdout)
    family, _, minor, machine = platform.split("_", 3)
    symbols = told["sym_tag"].split("_", 3)
    assert (symbols[0], symbols[3]) == (family, machine), told
    assert int(symbols[2]) <= int(minor), told
    # Musl finds its own library by this name; auditwheel knows the one that Alpine gives it.
    assert [*told["external_libs"]] == (["libc.so"] if family == "musllinux" else []), told


def look_at(dist: Path, again: Path) -> None:
    """Check all packages of a folder against each other and those of another build."""
    packages = sorted(dist.iterdir())
    assert [p.name for p in packages] == sorted(p.name for p in again.iterdir())
    for package in packages:
        assert package.read_bytes() == (again / package.name).read_bytes(), package.name
        sys.stdout.write(f"{package.stat().st_size / 1e6:6.2f} MB  {package.name}\n")
    wheels = [package for package in packages if package.suffix == ".whl"]
    for wheel in wheels:
        _check(wheel)
    platforms = {wheel.stem.split("-")[4] for wheel in wheels}
    assert platforms == {*TARGETS, "any"}, platforms
    assert len(packages) == len(wheels) + 1


if __name__ == "__main__":
    look_at(*map(Path, sys.argv[1:]))
