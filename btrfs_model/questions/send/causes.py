# SPDX-License-Identifier: GPL-2.0-only
"""The rules by which send sends commands, each with the kernel's function that decides.

The order is that of ``enum bm_send_cause`` in ``native/send/api.h``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from btrfs_model.ondisk.keys import Key
from btrfs_model.volume.compare import Change

_CREATE = ("mkfile", "mkdir", "mknod", "mkfifo", "mksock", "symlink")
_DATA = ("write", "encoded_write", "update_extent")
_HOLE = ("write", "fallocate", "update_extent")


ROW = np.dtype(
    [("inode", "u8"), ("objectid", "u8"), ("offset", "u8"), ("type", "u1"), ("change", "u1"),
     ("pad", "V6"), ("cause", "u4"), ("end", "V4")],
)  # fmt: skip
"""``struct bm_send_why``."""


PLACE = np.dtype([(name, "u8") for name in (
    "command", "bytenr", "pos", "root", "ino", "offset", "num_bytes", "verdict")])  # fmt: skip
"""``struct bm_send_place``."""

VERDICTS = {
    "chosen": "data are cloned from there",
    "not-sent-yet": "the snapshot itself, at a place that the receiver gets later",
    "file-too-short": "the file there ends before the extent does (kernels before 5.2)",
    "other-place": "another place in the same subvolume shows as much of the extent, or more",
    "other-source": "another clone source shows as much of the extent, or more",
    "end-unaligned": "it was chosen, but the end of the extent is not aligned: it is written",
    "too-many-references": "the extent has more references than the kernel looks at",
    "not-a-source": "a snapshot that is no clone source",
}
"""What becomes of a place that refers to an extent, and why; as ``enum bm_send_verdict``."""


class Item(NamedTuple):
    """An item that differs: its key, and how."""

    key: Key
    change: Change


NO_ITEM = Item(Key(0, 0, 0), Change.NEW)
"""What stands for the item of a command that comes from none."""


class Why(NamedTuple):
    """Why a command is sent: the rule, the inode that it is about, the item that differs."""

    cause: str
    ino: int
    item: Item


@dataclass
class Place:
    """A place that refers to an extent, as in ``struct bm_send_place``; `verdict` by its name."""

    command: int
    bytenr: int
    pos: int
    root: int = 0
    ino: int = 0
    offset: int = 0
    num_bytes: int = 0
    verdict: str = "other-source"


class Cause(NamedTuple):
    """A rule.

    `name`: as in the tables.
    `function`: the kernel's function in ``fs/btrfs/send.c`` that decides it.
    `commands`: what may be sent by it.
    `text`: why, in a line.
    """

    name: str
    function: str
    commands: tuple[str, ...]
    text: str


CAUSES: tuple[Cause, ...] = (
    Cause("subvol-begin", "send_subvol_begin", ("subvol", "snapshot"),
          "a stream starts with the name of the subvolume and what it is a difference to"),
    Cause("stream-end", "btrfs_ioctl_send", ("end",),
          "a stream ends so, unless that is to be left out"),
    Cause("inode-new", "changed_inode", _CREATE,
          "the parent has no such inode; it is made under an orphan name"),
    Cause("inode-replaced", "changed_inode", _CREATE,
          "the number has another generation than in the parent: another inode took it"),
    Cause("parent-early", "process_recorded_refs", ("mkdir",),
          "a new name is in a directory with a higher number, which is made before its turn"),
    Cause("name-in-the-way", "orphanize_inode", ("rename",),
          "an inode whose turn is still to come has the name: it gets its orphan name"),
    Cause("link-in-the-way", "process_recorded_refs", ("unlink",),
          "an inode whose turn is still to come has the name, but not as its first: it loses it"),
    Cause("first-name", "rename_current_inode", ("rename",),
          "a new inode goes from its orphan name to its first name"),
    Cause("name-after-orphan", "rename_current_inode", ("rename",),
          "an inode whose name was taken by an earlier one gets its new name"),
    Cause("dir-moved", "rename_current_inode", ("rename",),
          "a directory has another name or another parent"),
    Cause("dir-moved-later", "apply_dir_move", ("rename",),
          "a directory has another name or parent, and had to wait for another one to move"),
    Cause("name-added", "process_recorded_refs", ("link",),
          "a file has a name that the parent does not have"),
    Cause("name-removed", "process_recorded_refs", ("unlink",),
          "a file has lost a name"),
    Cause("orphan-removed", "process_recorded_refs", ("unlink",),
          "a file whose name was taken by an earlier inode has no name any more"),
    Cause("links-gone", "btrfs_unlink_all_paths", ("unlink",),
          "a file lost its last name while it was open (kernels before 6.1)"),
    Cause("dir-removed", "process_recorded_refs", ("rmdir",),
          "a directory is gone, and all that was in it"),
    Cause("dir-not-empty", "orphanize_inode", ("rename",),
          "a directory is gone, but what was in it is still to be processed: it is moved away"),
    Cause("dir-emptied", "process_recorded_refs", ("rmdir",),
          "the last name left a directory that is gone"),
    Cause("dir-left", "apply_dir_move", ("rmdir",),
          "a directory that had to wait left one that is gone"),
    Cause("xattr-set", "__process_new_xattr", ("set_xattr",),
          "an extended attribute is new or has another value"),
    Cause("xattr-removed", "__process_deleted_xattr", ("remove_xattr",),
          "an extended attribute is gone"),
    Cause("capabilities", "send_capabilities", ("set_xattr",),
          "a chown drops security.capability, so it is sent last and each time"),
    Cause("clone-source", "clone_range", ("clone",),
          "the receiver has the same extent in another place"),
    Cause("clone-truncate", "send_write_or_clone", ("truncate",),
          "an unaligned end is to be cloned, which has to be the end of the file"),
    Cause("write-inline", "find_extent_clone", _DATA,
          "the data is in the tree itself, where it cannot be shared"),
    Cause("write-unallocated", "find_extent_clone", _DATA,
          "a preallocated range or a hole, where the parent has something else: zeros"),
    Cause("write-no-source", "find_extent_clone", _DATA,
          "a new extent that the receiver has nowhere else, as far as was looked"),
    Cause("write-unaligned", "send_write_or_clone", _DATA,
          "a clone source was found, but the end is not aligned"),
    Cause("write-first-sector", "clone_range", _DATA,
          "the clone would be of one sector at the start of a file, which may be inline there"),
    Cause("write-source-hole", "clone_range", _DATA,
          "the clone source has a hole there"),
    Cause("write-source-differs", "clone_range", _DATA,
          "the clone source has other data there"),
    Cause("write-source-tail", "clone_range", _DATA,
          "the clone source ends there unaligned, and the file does not"),
    Cause("write-source-ends", "clone_range", _DATA,
          "the clone source does not reach so far"),
    Cause("hole", "maybe_send_hole", _HOLE,
          "a hole where the parent has data"),
    Cause("hole-at-end", "finish_inode_if_needed", _HOLE,
          "a hole at the end of the file where the parent has data"),
    Cause("truncate-size", "finish_inode_if_needed", ("truncate",),
          "the file of the receiver has another size by now"),
    Cause("truncate-always", "finish_inode_if_needed", ("truncate",),
          "kernels before 4.17 truncate each file to the size that it has already"),
    Cause("owner-new", "finish_inode_if_needed", ("chown",),
          "a new inode gets its owner"),
    Cause("owner-changed", "finish_inode_if_needed", ("chown",),
          "the owner or group is another one than in the parent"),
    Cause("mode-new", "finish_inode_if_needed", ("chmod",),
          "a new inode gets its mode"),
    Cause("mode-changed", "finish_inode_if_needed", ("chmod",),
          "the mode is another one than in the parent"),
    Cause("flags-changed", "finish_inode_if_needed", ("fileattr",),
          "the flags of the inode are others than in the parent"),
    Cause("verity", "process_verity", ("enable_verity",),
          "the file has fs-verity"),
    Cause("times-inode", "finish_inode_if_needed", ("utimes",),
          "whatever was sent of an inode, its times come last"),
    Cause("times-entry", "process_recorded_refs", ("utimes",),
          "a name came into a directory or left it, which changed its times"),
    Cause("times-move", "apply_dir_move", ("utimes",),
          "a directory that had to wait has moved: its times, and those of both its parents"),
)  # fmt: skip
"""All rules; the number of one is its place."""

CAUSES_BY_NAME = {cause.name: number for number, cause in enumerate(CAUSES)}
"""Numbers of the rules."""

VERDICTS_BY_NAME = {name: number for number, name in enumerate(VERDICTS)}
"""Numbers of the verdicts."""
