# SPDX-License-Identifier: GPL-2.0-only
"""Kernels by name."""

from __future__ import annotations

from pathlib import Path

from btrfs_model.base.errors import KernelMissingError
from btrfs_model.kernels import debian, uml
from btrfs_model.kernels.native import Native
from btrfs_model.kernels.session import Kernel
from btrfs_model.kernels.uml import Uml


def start(which: str = "native", *, memory: int = 2 << 30, limit: float = 1800) -> Kernel:
    """Find a kernel: ``native``, ``uml`` (Debian's package), a suite, or a ``linux.uml``'s path.

    A suite is one that :func:`btrfs_model.kernels.debian.get` has unpacked.

    `memory` and `limit`, and what is raised, are those of :class:`~btrfs_model.kernels.uml.Uml`.
    """
    if which == "native":
        return Native(limit)
    binary = uml.DEBIAN if which == "uml" else debian.binary_of(which) or Path(which)
    if debian.is_suite(which) and not binary.exists():
        raise KernelMissingError(f"{which} is not here: `btrfs-model kernel get {which}`")
    return Uml(binary, memory=memory, limit=limit)
