# SPDX-License-Identifier: GPL-2.0-only
"""What a crash and a replay may make of a filesystem.

Between two commits there are states, one after each call: state 0 is that of the commit. A log
that was synced at state *n* knows states 0 to *n* and nothing later. What btrfs promises, exactly:

1. A subvolume whose log was not synced is what was committed, item by item.
2. A file that was fsynced has the content that it had then, one that was not has the committed
   content, or none where it is new; *but* its end may be cut off at a size that it had in a later
   state. (Whoever logs that an inode exists, since a name of it is needed, logs its size, and no
   data. So a file that was truncated and written again may be its old content, cut: in no state was
   it so. Linux 6.18 does that; :func:`_contents`.)
3. Mode and attributes are together those of one state, since the fsync where there was one.
   (Before ``log-exists-size`` each is of one.)
4. A directory that was fsynced has the entries that it had then, but for names that a later call
   gave or took.
5. A file that was fsynced has the names that it had then, while they do not change; it may have
   kept names that were taken from it by a rename of something else to them.
6. Every name is one that there was in some state. What had a name in all states has it.
7. What was there in all states is there, unless a name was taken from it by unlink or by a rename
   to it. (After link and unlink, an fsync of the directory of the old name alone makes that name
   go; the new one was never asked for. Linux 6.18 loses the file.)
8. What no call touched has the same items, byte for byte.

Where inodes left the memory in between a kernel no longer knows that names were taken: an fsync of
their directory may do nothing (Linux 6.18), and then they are back.
"""

from __future__ import annotations

from collections.abc import Iterator

from crashes import Epoch, Ref, State

from btrfs_model.behaviour import Behaviour
from btrfs_model.ondisk.keys import ItemType
from btrfs_model.volume.filesystem import Filesystem

Name = tuple[Ref, bytes, Ref]
"""Directory, name, and where it leads to."""


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
        found += _Promises(epoch, writer, root, synced, result).broken()
    return found


def _logged_for_its_name(
    epoch: Epoch, writer: Behaviour, root: int, key: tuple[int, int, int]
) -> bool:
    """Before ``log-skip-old-dir-items`` directories are logged for entries beside new ones."""
    inode = epoch.committed.get((root, key[0]))
    old = "log-skip-old-dir-items" not in writer
    return old and key[1] == ItemType.INODE_ITEM and inode is not None and inode.is_dir


def _items(fs: Filesystem, root: int) -> dict[tuple[int, int, int], bytes]:
    return {tuple(item.key): bytes(item.data) for item in fs.tree(root).items()}


def _of(root: int, state: State) -> State:
    return {ref: inode for ref, inode in state.items() if ref[0] == root}


def _names(state: State) -> set[Name]:
    return {(ref, *entry) for ref, inode in state.items() for entry in inode.entries}


class _Promises:
    """Those of a subvolume whose log was synced."""

    def __init__(
        self, epoch: Epoch, writer: Behaviour, root: int, synced: int, result: State
    ) -> None:
        self.committed = _of(root, epoch.committed)
        self.fsynced = {ref: at for ref, at in epoch.fsynced.items() if ref[0] == root}
        last = max([synced, *self.fsynced.values()])
        self.states = [_of(root, state) for state in epoch.states[: last + 1]]
        self.names = [_names(state) for state in self.states]
        self.result = _of(root, result)
        self.result_names = _names(self.result)
        self.taken = epoch.taken
        self.evicted = epoch.evicted
        self.exact_sizes = "log-exists-size" in writer

    def broken(self) -> Iterator[str]:
        yield from self._lost()
        yield from self._attributes()
        yield from self._contents()
        for ref, at in self.fsynced.items():
            if all(ref in state for state in self.states[at:]):
                yield from self._fsynced(ref, at)

    def _lost(self) -> Iterator[str]:
        victims = {name[2] for name in self.taken}
        for ref in set.intersection(*map(set, self.states)) - self.result.keys() - victims:
            yield f"{ref} was there all the time and is lost"
        for name in set.intersection(*self.names) - self.result_names:
            yield f"name {name} was there all the time and is lost"
        for name in self.result_names - set.union(*self.names):
            yield f"name {name} was never there"

    def _attributes(self) -> Iterator[str]:
        for ref, inode in self.result.items():
            since = self.fsynced.get(ref, 0)
            had = [state[ref] for state in self.states[since:] if ref in state]
            together = (inode.mode, inode.xattrs) in {(one.mode, one.xattrs) for one in had}
            each = inode.mode in {one.mode for one in had} and (
                inode.xattrs in {one.xattrs for one in had}
            )
            if not (together if self.exact_sizes else each):
                yield f"{ref}: mode {inode.mode:o} and {inode.xattrs} are of no state"

    def _contents(self) -> Iterator[str]:
        for ref, inode in self.result.items():
            at = self.fsynced.get(ref)
            base = self.states[at] if at is not None else self.committed
            later = [state[ref].data for state in self.states[at or 0 :] if ref in state]
            whole = base[ref].data if ref in base else b""
            if inode.is_file:
                sizes = {len(whole), *map(len, later)}
                if not self.exact_sizes and ref in self.committed:
                    sizes.add(len(self.committed[ref].data))
                wanted = {whole[:size] for size in sizes}
            else:
                wanted = {one[ref].data for one in self.states if ref in one}
            if inode.data not in wanted:
                yield f"{ref}, fsynced at {at}, has {len(inode.data)} bytes of no state"

    def _fsynced(self, ref: Ref, at: int) -> Iterator[str]:
        """Entries of a directory, names of a file, that stayed since the fsync."""
        if ref not in self.result:
            yield f"{ref} was fsynced at {at} and is lost"
            return
        side = 0 if self.states[at][ref].is_dir else 2

        def part(names: set[Name]) -> set[Name]:
            return {name for name in names if name[side] == ref}

        wanted, found = part(self.names[at]), part(self.result_names)
        moving = {name[:2] for later in self.names[at:] for name in part(later) ^ wanted}
        spared = self.taken if side or self.evicted else set()
        for name in wanted ^ found:
            if name[:2] in moving or (name in found and name in spared):
                continue
            yield f"{ref}, fsynced at {at}: {name} is {'missing' if name in wanted else 'too many'}"
