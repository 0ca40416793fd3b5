# SPDX-License-Identifier: GPL-2.0-only
"""Is there memory for a workload? Found out before it is taken."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Final

from btrfs_model.base.errors import BtrfsModelError
from btrfs_model.experiments.workloads import Input, Workload

_BASE: Final = 200 << 20
"""Bytes that Python and what it imports take."""
_MEMINFO: Final = Path("/proc/meminfo")


def available() -> int:
    """Return the bytes of memory that this machine has left."""
    try:
        found = re.search(r"^MemAvailable:\s*(\d+) kB", _MEMINFO.read_text(), re.MULTILINE)
    except OSError:
        found = None
    if found is None:
        return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return int(found[1]) << 10


def needed(workload: Workload, source: Input) -> int:
    """Return about how many bytes of memory the replay of an input takes."""
    return _BASE + workload.bytes_each * next(iter(source.parameters.values()))


def check_room(workload: Workload, source: Input) -> None:
    """Refuse an input that there is no memory for.

    Raises
    ------
    BtrfsModelError
        With what it needs, about, and what is available.
    """
    wanted, there = needed(workload, source), available()
    if wanted > there:
        name, size = next(iter(source.parameters.items()))
        raise BtrfsModelError(
            f"{workload.name}: {size:,} {name} need about {wanted / 2**30:.3g} GiB of memory; "
            f"{there / 2**30:.3g} GiB are available"
        )
