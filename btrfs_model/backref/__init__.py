# SPDX-License-Identifier: GPL-2.0-only
"""Who refers to an extent: backref walking, and the LOGICAL_INO ioctl on top of it.

:mod:`~btrfs_model.backref.walk` is the algorithm in Python, to be read;
:mod:`~btrfs_model.backref.prelim` the containers whose order it reports in;
:mod:`~btrfs_model.backref.forest` the trees that it walks through. The functions here run the same
in C unless ``BTRFS_MODEL_KERNELS=python`` says otherwise.
"""

from btrfs_model.backref.api import (
    Extent,
    ExtentRef,
    extent_from_logical,
    find_all_leafs,
    find_all_roots,
    iterate_extent_inodes,
    logical_ino,
)
from btrfs_model.backref.forest import Forest
from btrfs_model.backref.walk import BackrefWalk, Walker

__all__ = [
    "BackrefWalk",
    "Extent",
    "ExtentRef",
    "Forest",
    "Walker",
    "extent_from_logical",
    "find_all_leafs",
    "find_all_roots",
    "iterate_extent_inodes",
    "logical_ino",
]
