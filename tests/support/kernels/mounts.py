# SPDX-License-Identifier: GPL-2.0-only
"""Images mounted by the running kernel, by one process of the tests at a time."""

import fcntl
import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

_held = 0


@contextmanager
def one_at_a_time() -> Iterator[None]:
    """Wait until no other process of these tests has anything mounted, and keep it so.

    Filesystems of the model have the same uuid, of which kernels before 6.7 mount one at a time. A
    process that is started in a mount namespace of its own, as that of a ``Native`` kernel, would
    keep what it finds mounted alive behind the back of who unmounts it.
    """
    global _held
    folder = -1 if _held else os.open(Path(__file__).parent, os.O_RDONLY)
    try:
        if folder >= 0:
            fcntl.flock(folder, fcntl.LOCK_EX)
        _held += 1
        try:
            yield
        finally:
            _held -= 1
    finally:
        if folder >= 0:
            os.close(folder)


@contextmanager
def mounted(image: Path, options: str) -> Iterator[Path]:
    """Mount an image; yield the folder."""
    with one_at_a_time(), TemporaryDirectory() as folder:
        subprocess.run(["mount", "-o", f"loop,{options}", str(image), folder], check=True)
        try:
            yield Path(folder)
        finally:
            subprocess.run(["umount", folder], check=True)
