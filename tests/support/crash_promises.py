# SPDX-License-Identifier: GPL-2.0-only
"""What a crash and a replay may make of a filesystem, as exactly as kernels keep it.

The rules are those of :mod:`btrfs_model.experiments.crashes.promises`, but for those that Linux
6.18 breaks. Beyond them: a log that was synced at state *n* knows states 0 to *n* and nothing
later, and what no call touched has the same items, byte for byte.

Where inodes left the memory in between a kernel no longer knows that names were taken: an fsync of
their directory may do nothing (Linux 6.18), and then they are back.
"""

from __future__ import annotations

from crashes import Epoch

from btrfs_model.behaviour import Behaviour
from btrfs_model.experiments.crashes.promises import History
from btrfs_model.experiments.crashes.seen import State
from btrfs_model.ondisk.keys import ItemType
from btrfs_model.volume.filesystem import Filesystem

BROKEN = {"content-cut", "fsync-taken-names", "inode-unlinked", "one-name"}
"""Rules that Linux 6.18 breaks."""
_EVICTED = {"fsync-entries", "fsync-old-names"}
"""Rules that it breaks where inodes left the memory."""


def broken_promises(
    epoch: Epoch, writer: Behaviour, crashed: Filesystem, replayed: Filesystem, result: State
) -> list[str]:
    """Return what is not as promised, in words.

    Parameters
    ----------
    epoch : Epoch
        What happened since the last commit.
    writer : Behaviour
        The kernel that wrote the log.
    crashed : Filesystem
        As the crash left it; read without its log.
    replayed : Filesystem
        What the replay made of it.
    result : dict
        What can be seen of that.
    """
    if crashed.subvolume_ids != replayed.subvolume_ids:
        return ["there are other subvolumes"]
    found = []
    for root in crashed.subvolume_ids:
        synced = epoch.synced.get(root)
        before, after = _items(crashed, root), _items(replayed, root)
        if synced is None:
            if before != after:
                found.append(f"subvolume {root} has no log and is not what was committed")
            continue
        touched = {ino for tree, ino in epoch.touched if tree == root}
        found += [
            f"item {key} was touched by no call" for key in before.keys() | after.keys()
            if key[0] not in touched and before.get(key) != after.get(key)
            and not _logged_for_its_name(epoch, writer, root, key)
        ]  # fmt: skip
        known = BROKEN | (_EVICTED if epoch.evicted else set())
        if "log-exists-size" not in writer:
            known |= {"attributes"}
        broken = _history(epoch, root, synced).broken(_of(root, result))
        found += [f"{one.rule}: {one.what}" for one in broken if one.rule not in known]
    return found


def _history(epoch: Epoch, root: int, synced: int) -> History:
    """Return what processes saw of a subvolume until its log was synced last."""
    fsynced = {ref: at for ref, at in epoch.fsynced.items() if ref[0] == root}
    last = max([synced, *fsynced.values()])
    committed = {ref: [(inode.data, inode.size)] for ref, inode in epoch.committed.items()}
    states = [_of(root, state) for state in epoch.states[: last + 1]]
    return History(states, fsynced, committed)


def _of(root: int, state: State) -> State:
    return {ref: inode for ref, inode in state.items() if ref[0] == root}


def _logged_for_its_name(
    epoch: Epoch, writer: Behaviour, root: int, key: tuple[int, int, int]
) -> bool:
    """Before ``log-skip-old-dir-items`` directories are logged for entries beside new ones."""
    inode = epoch.committed.get((root, key[0]))
    old = "log-skip-old-dir-items" not in writer
    return old and key[1] == ItemType.INODE_ITEM and inode is not None and inode.is_dir


def _items(fs: Filesystem, root: int) -> dict[tuple[int, int, int], bytes]:
    return {tuple(item.key): bytes(item.data) for item in fs.tree(root).items()}
