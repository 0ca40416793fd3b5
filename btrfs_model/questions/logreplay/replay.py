# SPDX-License-Identifier: GPL-2.0-only
"""Replay of logs: what a mount does with the fsyncs that came after the last commit.

::

    with bm.open("crashed.img") as fs, bm.replay_log(fs, behaviour="v6.12") as replayed:
        replayed.save("recovered.img")

A log is replayed in four walks over all log trees (``btrfs_recover_log_trees()``)::

    pin             the log's own blocks, and the data extents that only it knows
    replay inodes   inode items; what the log says was deleted goes
    replay index    names of directories
    replay all      names of inodes, attributes, file extents and their checksums

and at last the link counts of all inodes that were touched are counted again. Then one transaction
is committed, which has no log.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from btrfs_model.base.arguments import checked
from btrfs_model.base.codes import Code
from btrfs_model.base.errors import CorruptImageError, Fault
from btrfs_model.behaviour import Behaviour
from btrfs_model.ondisk.items import InlineExtent, file_extent
from btrfs_model.ondisk.keys import ItemType, ObjectId
from btrfs_model.ondisk.layout import PayloadError
from btrfs_model.patches import KERNEL
from btrfs_model.questions.logreplay.inodes import fixup_inode_link_counts
from btrfs_model.questions.logreplay.logged import LogTree, read_logs
from btrfs_model.questions.logreplay.walk import WalkControl, WalkStage, walk_log_tree
from btrfs_model.volume.lease import exclusive
from btrfs_model.volume.memory import Memory

if TYPE_CHECKING:
    from btrfs_model.mount.writable import WritableFilesystem
    from btrfs_model.volume.filesystem import Filesystem

_STAGES = (WalkStage.REPLAY_INODES, WalkStage.REPLAY_DIR_INDEX, WalkStage.REPLAY_ALL)


@checked
@exclusive
def replay_log(fs: Filesystem, *, behaviour: str | Behaviour = KERNEL) -> WritableFilesystem:
    """Replay the logs of a filesystem in a copy of it, as the next mount would.

    Parameters
    ----------
    fs : Filesystem
        After a crash; it and its file stay as they are. Without a log there is nothing to replay,
        but files that were deleted while they were open go. One that is being changed is taken as
        if it crashed now.
    behaviour : str or Behaviour
        The kernel that mounts it; who wrote the log does not matter.

    Returns
    -------
    WritableFilesystem
        The copy, with all that was fsynced committed.

    Raises
    ------
    CorruptImageError
        For a log that is damaged or contradicts the filesystem, with the tree, block and slot.
    UnsupportedError
        For what the model cannot write.
    UnknownBehaviourError
        For a behaviour that there is not.

    Notes
    -----
    ``btrfs_recover_log_trees()``, and ``btrfs_orphan_cleanup()`` of the mount. A kernel passes over
    the log of a subvolume that is gone; here that is an error, since no kernel leaves such a log.
    """
    from btrfs_model.mount.writable import WritableFilesystem

    chosen = Behaviour.parse(behaviour)
    if isinstance(fs, WritableFilesystem):
        memory = fs.memory.copy()
    else:
        memory = Memory.copy_of_buffer(fs.image.view)
    return WritableFilesystem(memory, fs.path, replay=chosen)


def recover_log_trees(fs: WritableFilesystem, behaviour: Behaviour) -> None:
    """Replay the logs of a filesystem that is being mounted (``btrfs_recover_log_trees()``).

    Raises
    ------
    CorruptImageError
        See :func:`replay_log`.
    """
    logs = read_logs(fs)
    if logs:
        _replay(fs, logs, behaviour)
    # the mount looks into the top subvolume; the first look into one deletes its orphans
    for root in sorted({int(ObjectId.FS_TREE), *(log.subvolume for log in logs[1:])}):
        fs.inodes.subvolume(root)
    fs.sync()
    fs.inodes.forget_all()


def _replay(fs: WritableFilesystem, logs: list[LogTree], behaviour: Behaviour) -> None:
    """Replay the logs and commit."""
    fs.start_transaction()
    excluded = _pin(fs, logs)
    for stage in _STAGES:
        for log in logs[1:]:
            control = WalkControl(fs, log, behaviour, stage, excluded)
            walk_log_tree(control)
            if stage is WalkStage.REPLAY_ALL:
                control.run(fixup_inode_link_counts, None)
    fs.raw_super = fs.raw_super._replace(log_root=0, log_root_level=0)
    fs.commit()
    _unpin(fs, logs, excluded)


def _pin(fs: WritableFilesystem, logs: list[LogTree]) -> set[tuple[int, int]]:
    """Take what belongs to the logs from the free space (``LOG_WALK_PIN_ONLY``).

    Returns
    -------
    set of (int, int)
        Address and length of the data extents that the extent tree does not have yet.
    """
    excluded = set()
    for log in logs:
        for block in log.blocks:
            _occupy(fs, block, fs.nodesize, Fault(0, int(ObjectId.TREE_LOG), block))
        for item in log.items:
            if item.key[1] != ItemType.EXTENT_DATA or not log.subvolume:
                continue
            place = Fault(0, int(ObjectId.TREE_LOG), item.block, item.slot)
            try:
                extent = file_extent(item.data)
            except PayloadError as error:
                raise error.at(
                    fs.path, tree=place.tree, block=place.block, slot=place.slot
                ) from None
            if isinstance(extent, InlineExtent) or not extent.disk_bytenr:
                continue
            found = (extent.disk_bytenr, extent.disk_num_bytes)
            key = (found[0], ItemType.EXTENT_ITEM, found[1])
            if found not in excluded and fs.writer.get(ObjectId.EXTENT_TREE, key) is None:
                _occupy(fs, *found, place)
                excluded.add(found)
    return excluded


def _occupy(fs: WritableFilesystem, start: int, length: int, place: Fault) -> None:
    try:
        fs.writer.occupy([(start, length)], used=False)
    except OSError:
        # beyond the device, or in use by something else
        fault = Fault(Code.BAD_VALUE, place.tree, place.block, place.slot, found=start)
        raise CorruptImageError(fs.path, fault) from None


def _unpin(fs: WritableFilesystem, logs: list[LogTree], excluded: set[tuple[int, int]]) -> None:
    for log in logs:
        for block in log.blocks:
            fs.writer.release_data(block, fs.nodesize)
    for start, length in excluded:
        fs.writer.release_data(start, length)
