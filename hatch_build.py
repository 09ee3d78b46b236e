"""Compiles the C files while xloader is built, if there is a C compiler.

Without one the build succeeds too: Python then does the same. The library uses nothing of Python's
own interface, so one file serves every release of Python.
"""

from __future__ import annotations

import hashlib
import os
import platform
import shlex
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface
from packaging.tags import platform_tags

FOLDER, LIBRARY = Path("xloader", "compiled"), "_compiled.so"
# Products and sums are rounded one by one, as NumPy does, so that orders are the same everywhere.
ROUNDING = "-ffp-contract=off"
FLAGS = ("-std=c11", "-O3", ROUNDING, "-shared", "-fPIC", "-fvisibility=hidden", "-pthread")


class CompiledLibrary(BuildHookInterface):
    """The hook that hatchling calls before and after it builds a wheel, an editable one too."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Compile the library, and name the wheel after this kind of machine."""
        if self.target_name != "wheel":
            return
        self._folder = tempfile.mkdtemp()
        made, library = Path(self._folder, LIBRARY), Path(self.root, FOLDER, LIBRARY)
        reason = compile_library(Path(self.root, FOLDER), made)
        if version == "editable":
            # Such a wheel only points to the sources, so the library lies among them.
            reason = _replace(library, made if not reason else None) or reason
        elif not reason:
            build_data["force_include"][str(made)] = str(FOLDER / LIBRARY)
        if reason:
            self.app.display_warning(f"xloader is built without its compiled library: {reason}")
            return
        build_data["pure_python"] = False
        tags = list(platform_tags())
        build_data["tag"] = f"py3-none-{next((t for t in tags if t.startswith('linux_')), tags[0])}"

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        """Remove what was compiled, which is in the wheel by now."""
        if self.target_name == "wheel":
            shutil.rmtree(self._folder, ignore_errors=True)


def compile_library(folder: Path, library: Path) -> str:
    """Compile the C files of a folder to one library; return why that failed, or an empty text."""
    if os.environ.get("XLOADER_COMPILED") == "0":
        return "XLOADER_COMPILED=0 is set"
    if platform.system() == "Windows":
        return "it is compiled on Linux and macOS only"
    compiler = os.environ.get("CC") or next(filter(shutil.which, ("cc", "gcc", "clang")), "")
    if not compiler:
        return "no C compiler was found"
    # Python compares it with that of the files, so that no library of another release is called.
    sources = sorted(folder.glob("*.c"))
    files = sorted([*sources, *folder.glob("*.h")])
    digest = hashlib.sha256(b"".join(file.read_bytes() for file in files)).digest()
    number = f"-DSOURCE_HASH={int.from_bytes(digest[:7], 'little')}"
    command = [*shlex.split(compiler), *FLAGS, number, "-o", str(library), *map(str, sources)]
    try:
        subprocess.run(command, check=True, capture_output=True, text=True)
    except OSError as error:
        return str(error)
    except subprocess.CalledProcessError as error:
        return f"{shlex.join(command)} failed: {error.stderr.strip()}"
    return ""


def _replace(library: Path, made: Path | None) -> str:
    """Put a new library in the place of an old one; return why that failed, or an empty text."""
    try:
        if made is None:
            library.unlink(missing_ok=True)
            return ""
        beside = library.with_name(f"{library.name}.{os.getpid()}")
        shutil.copyfile(made, beside)
        # Renamed whole, so that no process loads half a file.
        beside.replace(library)
    except OSError as error:
        return str(error)
    return ""
