# SPDX-License-Identifier: GPL-2.0-only
"""What a crash and a replay may make of a filesystem.

Between two commits there are states, one after each call: the first is that of the commit. A log
that was synced at state *n* knows states 0 to *n* and nothing later. The promises:

- a subvolume whose log was not synced is what was committed, item by item;
- a file that was fsynced has the content that it had then;
- a directory that was fsynced has the entries that it had then, but for those that a later call
  touched;
- what was not fsynced has the content that was committed, or none where it is new; its mode
  and attributes together are those of one state;
- every name is one that there was in some state;
- what was there in all states is there;
- what no call touched has the same items, byte for byte.
"""

from __future__ import annotations

from crashes import Epoch, Inode, Ref, State

from btrfs_model.filesystem import Filesystem
from btrfs_model.ondisk.keys import ItemType

__all__ = ["broken_promises"]


def broken_promises(epoch: Epoch, crashed: Filesystem, replayed: Filesystem, result: State) -> list[str]:
    """Return what is not as promised, in words.

    Parameters
    ----------
    epoch : Epoch
        What happened since the last commit.
    crashed : Filesystem
        As the crash left it; read without its log.
    replayed : Filesystem
        What the replay made of it.
    result : dict
        What can be seen of that.
    """
    found = []
    for root in crashed.subvolume_ids:
        synced = epoch.synced.get(root)
        if synced is None:
            if items(crashed, root) != items(replayed, root):
                found.append(f"subvolume {root} has no log and is not what was committed")
            continue
        found += _Promises(epoch, root, synced, result).broken()
        found += untouched(epoch, crashed, replayed, root)
    if crashed.subvolume_ids != replayed.subvolume_ids:
        found.append("other subvolumes")
    return found


def items(fs: Filesystem, root: int) -> dict[tuple[int, int, int], bytes]:
    return {tuple(item.key): bytes(item.data) for item in fs.tree(root).items()}


def untouched(epoch: Epoch, crashed: Filesystem, replayed: Filesystem, root: int) -> list[str]:
    """Inodes that no call was about are item by item what was committed."""
    touched = {ino for tree, ino in epoch.touched if tree == root}
    before, after = (
        {key: data for key, data in items(fs, root).items() if key[0] not in touched}
        for fs in (crashed, replayed)
    )
    orphans = ItemType.ORPHAN_ITEM
    return [
        f"item {key} of an untouched inode"
        for key in sorted(before.keys() | after.keys())
        if before.get(key) != after.get(key)
        and key[1] != orphans
    ]


class _Promises:
    def __init__(self, epoch: Epoch, root: int, synced: int, result: State) -> None:
        self.root = root
        self.committed = of(root, epoch.committed)
        self.fsynced = {ref: at for ref, at in epoch.fsynced.items() if ref[0] == root}
        last = max([synced, *self.fsynced.values()])
        self.states = [of(root, state) for state in epoch.states[: last + 1]]
        self.result = of(root, result)
        self.unlinked = {x for x in epoch.unlinked}
        self.victims = {x[2] for x in epoch.unlinked}

    def broken(self) -> list[str]:
        return [*self._lost(), *self._made_up(), *self._contents(), *self._directories(), *self._files()]

    def _lost(self):
        for ref in self.committed:
            if all(ref in state for state in self.states) and ref not in self.result and ref not in self.victims:
                yield f"{ref} was there all the time and is lost"
        stable=set.intersection(*({(d, *entry) for d, one in state.items() for entry in one.entries} for state in self.states))
        there={(d, *entry) for d, one in self.result.items() for entry in one.entries}
        for name in stable-there: yield f"name {name} was there all the time and is lost"
        for ref, at in self.fsynced.items():
            if all(ref in state for state in self.states[at:]) and ref not in self.result:
                yield f"{ref} was fsynced at {at} and is lost"

    def _made_up(self):
        known = {(d, *entry) for state in self.states for d, one in state.items() for entry in one.entries}
        for directory, one in self.result.items():
            for entry in one.entries:
                if (directory, *entry) not in known:
                    yield f"{directory} never had {entry}"

    def _contents(self):
        for ref, one in self.result.items():
            had = [state[ref] for state in self.states if ref in state]
            if (one.mode, one.xattrs) not in {(o.mode, o.xattrs) for o in had}:
                yield f"{ref}: attributes of no state: {one.mode:o} {one.xattrs}"
            if one.is_dir:
                continue
            at = self.fsynced.get(ref)
            base = self.states[at] if at is not None else self.committed
            if not one.is_file:
                wanted = {o.data for o in had}
            elif ref in base:
                whole = base[ref].data
                sizes = {len(state[ref].data) for state in self.states[at or 0 :] if ref in state}
                wanted = {whole} | {whole[:size] for size in sizes}
            else:
                wanted = {b""}
            if one.data not in wanted:
                yield f"{ref} (fsynced at {at}): content of {len(one.data)} instead of {[len(w) for w in wanted]}"

    def _directories(self):
        for ref, at in self.fsynced.items():
            was = self.states[at].get(ref)
            if was is None or not was.is_dir or ref not in self.result:
                continue
            later = {entry for state in self.states[at:] if ref in state for entry in state[ref].entries}
            names = {name for name, _ in later ^ was.entries} | {
                n for state in self.states[at:] if ref in state for n, _ in state[ref].entries ^ was.entries}
            now = {e for e in self.result[ref].entries if e[0] not in names}
            want = {e for e in was.entries if e[0] not in names}
            if now != want:
                yield f"directory {ref} fsynced at {at}: {sorted(now - want)} too many, {sorted(want - now)} missing"

    def _files(self):
        for ref, at in self.fsynced.items():
            was = self.states[at].get(ref)
            if was is None or was.is_dir or ref not in self.result:
                continue
            want = names_of(self.states[at], ref)
            if any(names_of(state, ref) != want for state in self.states[at:]):
                continue
            got = {n for n in names_of(self.result, ref) if n in want or (*n,ref) not in self.unlinked}
            if got != want:
                yield f"file {ref} fsynced at {at}: names {sorted(got)} instead of {sorted(want)}"


def of(root: int, state: State) -> State:
    return {ref: inode for ref, inode in state.items() if ref[0] == root}


def names_of(state: State, ref: Ref) -> set[tuple[Ref, bytes]]:
    return {(d, name) for d, one in state.items() for name, to in one.entries if to == ref}
