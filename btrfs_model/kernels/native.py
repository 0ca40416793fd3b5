# SPDX-License-Identifier: GPL-2.0-only
"""The machine's own kernel, as root, with images on loop devices."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from btrfs_model.base.errors import KernelMissingError
from btrfs_model.kernels.session import Kernel


def why_not() -> str:
    """Why this machine's kernel cannot be asked; empty when it can."""
    if os.geteuid():
        return "mounting needs root"
    if "btrfs" not in Path("/proc/filesystems").read_text():
        return "the running kernel has no btrfs (try: modprobe btrfs)"
    if not Path("/dev/loop-control").exists():
        return "there are no loop devices (try: modprobe loop)"
    return ""


class Native(Kernel):
    """The machine's own kernel, asked in a process that may hang. Its mounts are its own.

    Raises
    ------
    KernelMissingError
        With what is missing.
    """

    again = False

    def __init__(self, limit: float = 300) -> None:
        if why := why_not():
            raise KernelMissingError(f"kernel native: {why}")
        super().__init__("native", limit)

    def command(self) -> list[str]:
        """Run the agent in a mount namespace of its own: what it mounts ends with it."""
        return ["unshare", "--mount", *self.agent()]

    @contextmanager
    def attached(self, image: Path, *, read_only: bool) -> Iterator[str]:
        """Nothing to do: a mount makes a loop device, and an unmount takes it away."""
        yield str(image)
