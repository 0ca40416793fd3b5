# SPDX-License-Identifier: GPL-2.0-only
"""The four cells of the superblock that say where the trees were at the last commits.

A commit fills the cell after the one that the commit before it filled (``backup_super_roots()``).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from btrfs_model.ondisk.keys import ObjectId
from btrfs_model.ondisk.structs import ROOT_BACKUP, RawSuperBlock

_FIELDS = {
    ObjectId.ROOT_TREE: "tree_root",
    ObjectId.CHUNK_TREE: "chunk_root",
    ObjectId.EXTENT_TREE: "extent_root",
    ObjectId.FS_TREE: "fs_root",
    ObjectId.DEV_TREE: "dev_root",
    ObjectId.CSUM_TREE: "csum_root",
}

BACKED_UP: Final = tuple(map(int, _FIELDS))
"""The trees that a cell knows."""


def make_backup(raw: RawSuperBlock, roots: Mapping[int, tuple[int, int, int]]) -> bytes:
    """Return a filled cell.

    `raw`: for the sizes.
    `roots`: address, generation and level of the root block of each tree, by the tree's id.
    """
    values: dict[str, Any] = {}
    for tree, field in _FIELDS.items():
        bytenr, generation, level = roots[tree]
        values |= {field: bytenr, f"{field}_gen": generation, f"{field}_level": level}
    cell = ROOT_BACKUP.unpack(bytes(ROOT_BACKUP.size))
    return ROOT_BACKUP.pack(cell._replace(
        total_bytes=raw.total_bytes, bytes_used=raw.bytes_used, num_devices=raw.num_devices,
        **values,
    ))  # fmt: skip


def next_cell(raw: RawSuperBlock) -> int:
    """Return the cell that comes after the newest one, 0 where none is of the last commit."""
    for cell, backup in enumerate(raw.super_roots):
        if backup.tree_root_gen == raw.generation:
            return (cell + 1) % len(raw.super_roots)
    return 0


def store_backup(raw: RawSuperBlock, cell: int, backup: bytes) -> RawSuperBlock:
    """Return the superblock with a cell replaced."""
    cells = list(raw.super_roots)
    cells[cell] = ROOT_BACKUP.unpack(backup)
    return raw._replace(super_roots=tuple(cells))
