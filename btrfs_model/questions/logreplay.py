# SPDX-License-Identifier: GPL-2.0-only
"""What the next mount makes of a crashed filesystem.

::

    with bm.open("crashed.img") as fs, bm.replay_log(fs, behaviour="v6.12") as replayed:
        replayed.save("recovered.img")

The replay itself is :mod:`btrfs_model.mount.log.replay`.
"""

from __future__ import annotations

from btrfs_model.base.arguments import checked
from btrfs_model.behaviour import Behaviour
from btrfs_model.mount.roots.load import check_one_device
from btrfs_model.mount.writable import WritableFilesystem
from btrfs_model.native.lease import exclusive
from btrfs_model.patches import KERNEL
from btrfs_model.volume.device.memory import Memory
from btrfs_model.volume.filesystem import Filesystem, opening


@checked
@opening
@exclusive
def replay_log(fs: Filesystem, *, behaviour: str | Behaviour = KERNEL) -> WritableFilesystem:
    """Replay the logs of a filesystem in a copy of it, as the next mount would.

    Parameters
    ----------
    fs : Filesystem, str, os.PathLike or sequence of them
        After a crash, or the files it is in; it and its file stay as they are. Without a log there
        is nothing to replay, but files that were deleted while they were open go. One that is being
        changed is taken as if it crashed now.
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
    chosen = Behaviour.parse(behaviour)
    if isinstance(fs, WritableFilesystem):
        memory = fs.memory.copy()
    else:
        check_one_device(fs)
        memory = Memory.copy_of_buffer(fs.image.view)
    return WritableFilesystem(memory, fs.path, replay_behaviour=chosen)
