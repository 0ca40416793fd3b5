# SPDX-License-Identifier: GPL-2.0-only
"""Programs and mounts, as a kernel that is asked has them."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypedDict


def run(*command: str) -> str:
    """Run a program; what it says."""
    ran = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    if ran.returncode:
        said = " ".join(ran.stdout.split())
        raise OSError(f"{' '.join(command)}: status {ran.returncode}: {said}")
    return ran.stdout


class Place(TypedDict):
    """What is mounted, where and how."""

    source: str
    top: str
    options: str


@contextmanager
def mounted(source: str, top: str, options: str) -> Iterator[Path]:
    """Mount a device, or an image on a loop device that goes with the mount; yield the folder."""
    Path(top).mkdir(exist_ok=True)
    if Path(source).is_file():
        options = f"loop,{options}"
    run("mount", "-t", "btrfs", "-o", options, source, top)
    try:
        yield Path(top)
    finally:
        run("umount", top)


def forget() -> None:
    """Drop what the kernel has in memory of files, names and inodes."""
    run("sync")
    Path("/proc/sys/vm/drop_caches").write_text("3")
