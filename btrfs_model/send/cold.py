# SPDX-License-Identifier: GPL-2.0-only
"""Which tree blocks a kernel has in memory that mounted a filesystem and opened a subvolume."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from btrfs_model.filesystem import Filesystem, Subvolume

__all__ = ["blocks_after_mount"]


def blocks_after_mount(fs: Filesystem, subvolume: Subvolume) -> set[int]:
    """Return the addresses of the tree blocks that are cached when a send starts."""
    return {tree.bytenr for tree in fs.trees.values()}
