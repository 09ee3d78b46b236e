"""PyTorch and its GPUs as this process finds them."""

from __future__ import annotations

import importlib
from importlib.util import find_spec
from typing import Any

from xloader.core.findings import Finding
from xloader.core.messages import extra_remedy
from xloader.core.nbytes import show_nbytes


def find_torch(name: str = "torch") -> list[Finding]:
    """PyTorch's release and what it can compute on. It is imported if it is installed."""
    if find_spec(name) is None:
        remedy = f'pass output="numpy" to your loaders, or {extra_remedy("torch")}'
        return [Finding("PyTorch", "note", "not installed", remedy)]
    try:
        torch = importlib.import_module(name)
    # A library of CUDA that is absent or of another release raises errors of any kind.
    except Exception as error:
        told = f"installed, but importing it fails ({type(error).__name__}: {error})"
        return [Finding("PyTorch", "problem", told, "install torch again: see pytorch.org")]
    release = str(torch.__version__)
    return [Finding("PyTorch", "ok", release, value=release), find_devices(torch)]


def find_devices(torch: Any) -> Finding:
    """The GPUs that PyTorch can compute on."""
    built = torch.version.cuda or getattr(torch.version, "hip", None)
    if torch.cuda.is_available():
        names = []
        for number in range(torch.cuda.device_count()):
            told = torch.cuda.get_device_properties(number)
            names.append(f"{told.name} ({show_nbytes(told.total_memory)})")
        return Finding("GPU", "ok", f"CUDA {built}: {', '.join(names)}", value=len(names))
    mps = getattr(torch.backends, "mps", None)
    if mps is not None and mps.is_available():
        return Finding("GPU", "ok", "Metal (mps)", value=1)
    if built:
        return Finding(
            "GPU",
            "note",
            f"PyTorch is built for CUDA {built}, but finds no GPU",
            "if there is one, check nvidia-smi and the driver's release",
            0,
        )
    return Finding("GPU", "ok", "none: this PyTorch is built for the CPU alone", value=0)
