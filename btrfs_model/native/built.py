# SPDX-License-Identifier: GPL-2.0-only
"""What the compiled module is made of, to tell one that is older or newer than what stands here.

The build carries :func:`digest` into the module, and the import compares. This file uses Python's
library alone: the build runs it where nothing is installed yet.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from pathlib import Path


def _entries(folder: str | os.PathLike[str]) -> Iterator[os.DirEntry[str]]:
    """Yield what the module is made of: C and the script that builds it, except for tests of C."""
    with os.scandir(folder) as entries:
        for entry in entries:
            if entry.name.endswith((".c", ".h")) or entry.name == "build_ffi.py":
                yield entry
            elif entry.name not in ("tests", "build", "__pycache__") and entry.is_dir():
                yield from _entries(entry)


def sources(folder: Path) -> list[Path]:
    """Return the files that the module is made of, in order.

    `folder`: ``native`` of a clone.
    """
    return sorted(Path(entry.path) for entry in _entries(folder))


def digest(folder: Path) -> int:
    """Return 63 bits of the names and the text of :func:`sources`."""
    total = hashlib.sha256()
    for path in sources(folder):
        text = path.read_bytes()
        total.update(f"{path.relative_to(folder).as_posix()} {len(text)}\n".encode())
        total.update(text)
    return int.from_bytes(total.digest()[:8], "little") >> 1


def is_newer(folder: Path, module: Path) -> bool:
    """Whether any of :func:`sources` was written after the compiled module."""
    built = module.stat().st_mtime_ns
    return any(entry.stat().st_mtime_ns > built for entry in _entries(folder))
