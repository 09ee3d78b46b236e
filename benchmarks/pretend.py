"""Codecs that only sleep, or do nothing, in the place of those that decompress."""

from __future__ import annotations

import ctypes
import shutil
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any, Literal

import numcodecs.blosc
import numcodecs.zstd

from xloader.sources.zarr.compiled_decoding import decoder

Codec = Literal["sleep", "free"]
"""Sleeps, or does nothing."""

NS_PER_BYTE = 2.0


class PretendCodecs:
    """Puts other functions in the place of those that decompress, in this process.

    The compiled decoder gets compiled functions, so that no call needs Python's lock. Where there
    is no C compiler, ``decompress`` of numcodecs is replaced by its name.
    """

    def __init__(self) -> None:
        self._decoder = decoder()
        self._library = None if self._decoder is None else _compile()

    def use(self, codec: Codec) -> None:
        """Decompress from now on with a codec."""
        seconds = NS_PER_BYTE * 1e-9 if codec == "sleep" else 0.0
        if self._decoder is None or self._library is None:
            self._replace_by_name(seconds)
            return
        self._library.set_seconds_per_byte(ctypes.c_double(seconds))
        for at, name in ((2, "pretend_zstd"), (3, "pretend_blosc")):
            function = getattr(self._library, name)
            self._decoder.addresses[at] = ctypes.cast(function, ctypes.c_void_p).value or 0

    def _replace_by_name(self, seconds: float) -> None:
        def decompress(_: Any, out: Any = None) -> Any:
            if seconds:
                time.sleep(seconds * out.nbytes)
            return out

        for module in (numcodecs.blosc, numcodecs.zstd):
            module.decompress = decompress


def _compile() -> ctypes.CDLL | None:
    compiler = next(filter(None, map(shutil.which, ("cc", "gcc", "clang"))), None)
    if compiler is None:
        return None
    source = Path(__file__).with_name("pretend_codec.c")
    with tempfile.TemporaryDirectory() as folder:
        library = Path(folder, "pretend_codec.so")
        command = [compiler, "-O2", "-shared", "-fPIC", "-o", str(library), str(source)]
        subprocess.run(command, check=True)
        return ctypes.CDLL(str(library))
