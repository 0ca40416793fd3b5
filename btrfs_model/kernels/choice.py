# SPDX-License-Identifier: GPL-2.0-only
"""Kernels by name."""

from __future__ import annotations

from btrfs_model.kernels import uml
from btrfs_model.kernels.native import Native
from btrfs_model.kernels.session import Kernel
from btrfs_model.kernels.uml import Uml


def start(which: str = "native", *, memory: int = 2 << 30, limit: float = 1800) -> Kernel:
    """Find a kernel: ``native``, ``uml`` (Debian's package) or the path of a ``linux.uml``.

    `memory` and `limit`, and what is raised, are those of :class:`~btrfs_model.kernels.uml.Uml`.
    """
    if which == "native":
        return Native(limit)
    return Uml(uml.DEBIAN if which == "uml" else which, memory=memory, limit=limit)
