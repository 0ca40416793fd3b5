# SPDX-License-Identifier: GPL-2.0-only
"""The processor that is calibrated: its model and its caches."""

from __future__ import annotations

import platform
import re
from pathlib import Path

from btrfs_model.cost.caches import DEFAULT_MIB


def model() -> str:
    """Return the model of the processor, as ``/proc/cpuinfo`` has it."""
    found = re.search(r"^model name\s*:\s*(.+)$", _read("/proc/cpuinfo"), re.MULTILINE)
    return found[1] if found else platform.machine()


def caches() -> dict[str, int]:
    """Return the KiB of its caches of data, by level."""
    found = {}
    for index in sorted(Path("/sys/devices/system/cpu/cpu0/cache").glob("index*")):
        level, kind, size = (_read(str(index / name)).strip() for name in ("level", "type", "size"))
        if kind != "Instruction" and size.endswith("K"):
            found[f"L{level}"] = int(size[:-1])
    return found


def last_cache_mib() -> float:
    """Return the MiB of its last cache; where none is told, that of the package's machines."""
    return max(caches().values(), default=DEFAULT_MIB * 1024) / 1024


def _read(path: str) -> str:
    try:
        return Path(path).read_text()
    except OSError:
        return ""
