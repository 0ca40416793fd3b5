# SPDX-License-Identifier: GPL-2.0-only
"""Filesystems: trees, subvolumes, directories, files and their data."""

from btrfs_model.filesystem.compression import decompress
from btrfs_model.filesystem.data import FileExtent, FileReader
from btrfs_model.filesystem.filesystem import Filesystem, ForestRoot
from btrfs_model.filesystem.listing import listing
from btrfs_model.filesystem.roots import Root, is_subvolume_id
from btrfs_model.filesystem.subvolume import DirEntry, Inode, InodeName, Subvolume, SubvolumeName

__all__ = [
    "DirEntry",
    "FileExtent",
    "FileReader",
    "Filesystem",
    "ForestRoot",
    "Inode",
    "InodeName",
    "Root",
    "Subvolume",
    "SubvolumeName",
    "decompress",
    "is_subvolume_id",
    "listing",
]
