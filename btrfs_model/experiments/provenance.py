# SPDX-License-Identifier: GPL-2.0-only
"""Where results come from: what ran, on what, with which input."""

from __future__ import annotations

import hashlib
import os
import platform
from importlib import metadata
from pathlib import Path

from btrfs_model.base.version import __version__

_LIBRARIES = ("cffi", "matplotlib", "numpy", "pandas", "pyarrow")


def software() -> dict[str, object]:
    """Return the versions of the model and of what it stands on, and which kernels it uses."""
    from btrfs_model.native.choice import use_python

    return {
        "btrfs-model": __version__,
        "kernels": "python" if use_python() else "c",
        "python": platform.python_version(),
        "libraries": {name: metadata.version(name) for name in _LIBRARIES},
    }


def machine() -> dict[str, object]:
    """Return what computes: system, processor, number of processors, memory in bytes."""
    return {
        "system": f"{platform.system()} {platform.release()}",
        "architecture": platform.machine(),
        "processor": _processor(),
        "processors": os.cpu_count(),
        "memory_bytes": os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"),
    }


def _processor() -> str:
    try:
        text = Path("/proc/cpuinfo").read_text()
    except OSError:
        return platform.processor()
    names = (line.partition(":")[2].strip() for line in text.splitlines() if "model name" in line)
    return next(names, platform.processor())


def input_file(path: Path) -> dict[str, object]:
    """Return name, size and sha256 of an input."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while piece := file.read(1 << 20):
            digest.update(piece)
    return {"name": path.name, "bytes": path.stat().st_size, "sha256": digest.hexdigest()}
