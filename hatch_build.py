"""Compiles the C files while xloader is built, if there is a C compiler.

Without one the build succeeds too: Python then does the same. The library uses nothing of Python's
own interface, so one file serves every release of Python. The environment variable
``XLOADER_PLATFORM`` asks for a wheel of another platform, ``any`` for one without the library.
"""

from __future__ import annotations

import hashlib
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface
from packaging.tags import platform_tags

FOLDER, LIBRARY = Path("xloader", "compiled"), "_compiled.so"
# Products and sums are rounded one by one, as NumPy does, so that orders are the same everywhere.
ROUNDING = "-ffp-contract=off"
TARGETS = {
    "manylinux_2_28_x86_64": "x86_64-linux-gnu.2.28",
    "manylinux_2_28_aarch64": "aarch64-linux-gnu.2.28",
    "musllinux_1_2_x86_64": "x86_64-linux-musl",
    "musllinux_1_2_aarch64": "aarch64-linux-musl",
    "macosx_11_0_x86_64": "x86_64-macos.11.0",
    "macosx_11_0_arm64": "aarch64-macos.11.0",
}
"""Per platform of a wheel, what the C compiler of the package ziglang compiles for."""
FLAGS = ("-std=c11", "-O3", ROUNDING, "-shared", "-fPIC", "-fvisibility=hidden", "-pthread")


class CompiledLibrary(BuildHookInterface):
    """The hook that hatchling calls before and after it builds a wheel, an editable one too."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Compile the library, and name the wheel after this kind of machine."""
        if self.target_name != "wheel":
            return
        self._folder = tempfile.mkdtemp()
        platform = os.environ.get("XLOADER_PLATFORM", "")
        if platform == "any":
            return
        made, library = Path(self._folder, LIBRARY), Path(self.root, FOLDER, LIBRARY)
        reason = compile_library(Path(self.root, FOLDER), made, platform)
        if version == "editable":
            # Such a wheel only points to the sources, so the library lies among them.
            reason = _replace(library, made if not reason else None) or reason
        elif not reason:
            build_data["force_include"][str(made)] = str(FOLDER / LIBRARY)
        if reason and platform:
            raise RuntimeError(f"there is no wheel for {platform}: {reason}")
        if reason:
            self.app.display_warning(f"xloader is built without its compiled library: {reason}")
            return
        build_data["pure_python"] = False
        tags = list(platform_tags())
        ours = next((tag for tag in tags if tag.startswith("linux_")), tags[0])
        build_data["tag"] = f"py3-none-{platform or ours}"

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        """Remove what was compiled, which is in the wheel by now."""
        if self.target_name == "wheel":
            shutil.rmtree(self._folder, ignore_errors=True)


def _compiler_for(platform: str) -> tuple[list[str], str]:
    """The command that compiles for a platform, or for this machine; or else why there is none."""
    if platform and platform not in TARGETS:
        return [], f"XLOADER_PLATFORM is any, {', '.join(TARGETS)}"
    if platform:
        # Without the name of a temporary folder, two builds are equal.
        own = ["-s", *(["-Wl,-install_name,@rpath/" + LIBRARY] if "macos" in platform else [])]
        return [sys.executable, "-m", "ziglang", "cc", "-target", TARGETS[platform], *own], ""
    if os.environ.get("XLOADER_COMPILED") == "0":
        return [], "XLOADER_COMPILED=0 is set"
    if sys.platform == "win32":
        return [], "it is compiled on Linux and macOS only"
    compiler = os.environ.get("CC") or next(filter(shutil.which, ("cc", "gcc", "clang")), "")
    return shlex.split(compiler), "" if compiler else "no C compiler was found"


def compile_library(folder: Path, library: Path, platform: str = "") -> str:
    """Compile the C files of a folder to one library; return why that failed, or an empty text."""
    compiler, reason = _compiler_for(platform)
    if reason:
        return reason
    # Python compares it with that of the files, so that no library of another release is called.
    sources = sorted(folder.glob("*.c"))
    files = sorted([*sources, *folder.glob("*.h")])
    digest = hashlib.sha256(b"".join(file.read_bytes() for file in files)).digest()
    number = f"-DSOURCE_HASH={int.from_bytes(digest[:7], 'little')}"
    command = [*compiler, *FLAGS, number, "-o", str(library), *map(str, sources)]
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
