# SPDX-License-Identifier: GPL-2.0-only
"""Replay of logs: what a mount does with the fsyncs after the last commit.

A log is replayed in four walks over all log trees (``btrfs_recover_log_trees()``)::

    pin             the log's own blocks, and the data extents that only it knows
    replay inodes   inode items; what the log says was deleted goes
    replay index    names of directories
    replay all      names of inodes, attributes, file extents and their checksums

and at last the link counts of all inodes that were touched are counted again. Then one transaction
is committed, which has no log.
"""

from __future__ import annotations

from btrfs_model.base.codes import Code
from btrfs_model.base.errors import CorruptImageError, Fault
from btrfs_model.behaviour import Behaviour
from btrfs_model.mount.files.writeback import flush_delalloc
from btrfs_model.mount.inode import live_subvolume
from btrfs_model.mount.log.replay.control import WalkControl, WalkStage
from btrfs_model.mount.log.replay.deletes import fixup_inode_link_counts
from btrfs_model.mount.log.replay.logged import LogTree, read_logs
from btrfs_model.mount.log.replay.walk import walk_log_tree
from btrfs_model.mount.mount import Mount
from btrfs_model.mount.space.free_space_ctl import FreeSpaceCtl, free_space_of
from btrfs_model.mount.transaction import commit, start_transaction
from btrfs_model.ondisk.items import InlineExtent, file_extent
from btrfs_model.ondisk.keys import ItemType, ObjectId
from btrfs_model.ondisk.layout import PayloadError

_STAGES = (WalkStage.REPLAY_INODES, WalkStage.REPLAY_DIR_INDEX, WalkStage.REPLAY_ALL)


def recover_log_trees(fs: Mount, behaviour: Behaviour) -> None:
    """Replay the logs of a filesystem that is being mounted (``btrfs_recover_log_trees()``).

    Raises CorruptImageError: for a log that is damaged or contradicts the filesystem, with the
    tree, block and slot.
    Raises OSError: EINVAL for one that kernels refuse; see :class:`_FreeSpace`.
    """
    logs = read_logs(fs)
    if logs:
        _replay(fs, logs, behaviour)
    # the mount looks into the top subvolume; the first look into one deletes its orphans
    for root in sorted({int(ObjectId.FS_TREE), *(log.subvolume for log in logs[1:])}):
        live_subvolume(fs, root)
    flush_delalloc(fs)
    commit(fs)
    fs.live_subvolumes.clear()


def _replay(fs: Mount, logs: list[LogTree], behaviour: Behaviour) -> None:
    """Replay the logs and commit."""
    start_transaction(fs)
    excluded = _pin(fs, logs)
    for stage in _STAGES:
        for log in logs[1:]:
            control = WalkControl(fs, log, behaviour, stage, excluded)
            walk_log_tree(control)
            if stage is WalkStage.REPLAY_ALL:
                control.run(fixup_inode_link_counts, None)
    fs.raw_super = fs.raw_super._replace(log_root=0, log_root_level=0)
    commit(fs)
    _unpin(fs, logs, excluded)


def _pin(fs: Mount, logs: list[LogTree]) -> set[tuple[int, int]]:
    """Take what belongs to the logs from the free space (``LOG_WALK_PIN_ONLY``).

    Returns address and length of the data extents that the extent tree does not have yet.
    """
    excluded = set()
    caches = _FreeSpace(fs) if fs.image.superblock.has_incompat("MIXED_GROUPS") else None
    for log in logs:
        for block in log.blocks:
            if caches:
                caches.remove(block, fs.nodesize)
            _occupy(fs, block, fs.nodesize, Fault(0, int(ObjectId.TREE_LOG), block))
        for item in log.items:
            if item.key[1] != ItemType.EXTENT_DATA or not log.subvolume:
                continue
            place = Fault(0, int(ObjectId.TREE_LOG), item.block, item.slot)
            try:
                extent = file_extent(item.data)
            except PayloadError as error:
                raise error.at(fs.path, tree=place.tree, block=item.block, slot=item.slot) from None
            if isinstance(extent, InlineExtent) or not extent.disk_bytenr:
                continue
            found = (extent.disk_bytenr, extent.disk_num_bytes)
            if caches:
                caches.remove(*found)
            key = (found[0], ItemType.EXTENT_ITEM, found[1])
            if found not in excluded and fs.writer.get(ObjectId.EXTENT_TREE, key) is None:
                _occupy(fs, *found, place)
                excluded.add(found)
    return excluded


class _FreeSpace:
    """The free space of all block groups as the mounting kernel has it, each when it is asked for.

    What an extent tree has is no free space. Where groups mix, a kernel takes away from it every
    extent that a log names (``btrfs_exclude_logged_extents()``), also one that is there already, as
    that of a clone. Where that lies in a bitmap the replay ends (``remove_from_bitmap()``).
    """

    def __init__(self, fs: Mount) -> None:
        self._fs = fs
        self._found: dict[int, FreeSpaceCtl] = {}

    def remove(self, start: int, length: int) -> None:
        """Take an extent away.

        Raises OSError: EINVAL, where the kernel does not mount.
        """
        fs = self._fs
        group = next((group for group in fs.writer.groups()
                      if group.start <= start < group.start + group.length), None)  # fmt: skip
        if group is None:
            return
        if group.start not in self._found:
            self._found[group.start] = free_space_of(fs, group)
        try:
            self._found[group.start].remove(start, length)
        except OSError as error:
            where = f"{fs.path}: the log names the extent at {start}, which is not free"
            raise OSError(
                error.errno, f"{where}, and kernels refuse that: {error.strerror}"
            ) from None


def _occupy(fs: Mount, start: int, length: int, place: Fault) -> None:
    try:
        fs.writer.occupy([(start, length)], used=False)
    except OSError:
        # beyond the device, or in use by something else
        fault = Fault(Code.BAD_VALUE, place.tree, place.block, place.slot, found=start)
        raise CorruptImageError(fs.path, fault) from None


def _unpin(fs: Mount, logs: list[LogTree], excluded: set[tuple[int, int]]) -> None:
    for log in logs:
        for block in log.blocks:
            fs.writer.release_data(block, fs.nodesize)
    for start, length in excluded:
        fs.writer.release_data(start, length)
