# SPDX-License-Identifier: GPL-2.0-only
"""A filesystem that is changed, crashes and is replayed, and beside it what it should hold.

:class:`Files` is the reference: names and contents in plain Python, which knows nothing of trees.
:class:`Workload` carries operations of scenarios out on the model and on the reference alike, and
remembers what was committed, what was fsynced, and every state in between.
"""

from __future__ import annotations

import stat
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import btrfs_model as bm
from btrfs_model.behaviour import Behaviour
from btrfs_model.experiments.crashes.seen import TOP, Inode, Ref, State, seen
from btrfs_model.experiments.scenario.load import Scenario
from btrfs_model.experiments.scenario.operations import parse_step
from btrfs_model.experiments.scenario.run import Runner
from btrfs_model.kernels.inside.fill import data_of
from btrfs_model.mount.inode import live_subvolume
from btrfs_model.mount.writable import WritableFilesystem
from btrfs_model.volume.filesystem import Filesystem

SIZE = 128 << 20

START = [
    ["mkdir", "d"], ["mkdir", "e"], ["mkdir", "d/e"], ["create", "a"], ["write", "a", 0, 6000, 1],
    ["create", "d/b"], ["write", "d/b", 0, 100, 2], ["create", "e/c"],
    ["setxattr", "a", "user.x", "77"], ["setxattr", "d", "user.x", "77"], ["sync"],
]  # fmt: skip
"""What a workload begins with."""

Line = list[Any]
"""An operation as in a scenario; ``drop_caches`` and ``flush`` beside those."""


class Files:
    """Names and contents, changed by calls that are known to succeed."""

    def __init__(self, state: State) -> None:
        self.inodes: State = dict(state)

    def paths(self) -> dict[bytes, Ref]:
        """All paths but the top's."""
        return dict(self._below((5, TOP), b""))

    def _below(self, directory: Ref, path: bytes) -> Iterator[tuple[bytes, Ref]]:
        for name, ref in sorted(self.inodes[directory].entries):
            at = path + b"/" + name if path else name
            yield at, ref
            if ref in self.inodes and self.inodes[ref].is_dir:
                yield from self._below(ref, at)

    def at(self, path: bytes) -> Ref:
        ref: Ref = (5, TOP)
        for name in path.split(b"/") if path else []:
            ref = dict(self.inodes[ref].entries)[name]
        return ref

    def parent(self, path: bytes) -> tuple[Ref, bytes]:
        above, _, name = path.rpartition(b"/")
        return self.at(above), name

    def _change(self, ref: Ref, **fields: Any) -> None:
        self.inodes[ref] = replace(self.inodes[ref], **fields)

    def _enter(self, path: bytes, ref: Ref) -> None:
        directory, name = self.parent(path)
        self._change(directory, entries=self.inodes[directory].entries | {(name, ref)})

    def _leave(self, path: bytes) -> Ref:
        directory, name = self.parent(path)
        entries = self.inodes[directory].entries
        ref = dict(entries)[name]
        self._change(directory, entries=entries - {(name, ref)})
        return ref

    def _drop_unnamed(self, ref: Ref) -> None:
        if not any(ref == to for one in self.inodes.values() for _, to in one.entries):
            del self.inodes[ref]

    # ------------------------------------------------------------------------------- names --

    def add(self, path: bytes, ref: Ref, inode: Inode) -> None:
        self.inodes[ref] = inode
        self._enter(path, ref)

    def link(self, old: bytes, new: bytes) -> None:
        self._enter(new, self.at(old))

    def unlink(self, path: bytes) -> None:
        self._drop_unnamed(self._leave(path))

    def rename(self, old: bytes, new: bytes) -> None:
        moved = self.at(old)
        directory, name = self.parent(new)
        victim = dict(self.inodes[directory].entries).get(name)
        if victim == moved:
            return  # two names of one inode: rename(2) does nothing
        if victim is not None:
            self._leave(new)
        self._change(directory, entries=self.inodes[directory].entries | {(name, moved)})
        self._leave(old)
        if victim is not None:
            self._drop_unnamed(victim)

    def exchange(self, old: bytes, new: bytes) -> None:
        places = [(self.parent(path), self.at(path)) for path in (old, new)]
        (first, one), (second, other) = places
        for (directory, name), ref in (first, one), (second, other):
            entries = self.inodes[directory].entries
            self._change(directory, entries=entries - {(name, ref)})
        for (directory, name), ref in (first, other), (second, one):
            entries = self.inodes[directory].entries
            self._change(directory, entries=entries | {(name, ref)})

    # -------------------------------------------------------------------------------- data --

    def write(self, path: bytes, offset: int, data: bytes) -> None:
        ref = self.at(path)
        old = self.inodes[ref].data.ljust(offset, b"\0")
        self._change(ref, data=old[:offset] + data + old[offset + len(data) :])

    def truncate(self, path: bytes, size: int) -> None:
        ref = self.at(path)
        self._change(ref, data=self.inodes[ref].data[:size].ljust(size, b"\0"))

    def fallocate(self, path: bytes, mode: int, offset: int, length: int) -> None:
        ref = self.at(path)
        data = self.inodes[ref].data
        size = len(data) if mode & 1 else max(len(data), offset + length)
        data = data.ljust(size, b"\0")
        if mode & (2 | 16):
            end = min(offset + length, size)
            data = data[:offset] + bytes(max(end - offset, 0)) + data[max(end, offset) :]
        self._change(ref, data=data)

    def clone(self, source: bytes, at: int, length: int, target: bytes, to: int) -> None:
        data = self.inodes[self.at(source)].data
        if at < len(data):
            self.write(target, to, data[at : at + length] if length else data[at:])

    # -------------------------------------------------------------------------- attributes --

    def chmod(self, path: bytes, mode: int) -> None:
        ref = self.at(path)
        self._change(ref, mode=stat.S_IFMT(self.inodes[ref].mode) | mode)

    def setxattr(self, path: bytes, name: bytes, value: bytes | None) -> None:
        ref = self.at(path)
        xattrs = dict(self.inodes[ref].xattrs)
        if value is None:
            del xattrs[name]
        else:
            xattrs[name] = value
        self._change(ref, xattrs=frozenset(xattrs.items()))


@dataclass
class Epoch:
    """What happened since a commit.

    Attributes
    ----------
    committed : dict
        What the commit holds.
    states : list of dict
        Each state since, that of the commit first.
    synced : dict of int to int
        Subvolumes whose log was written last, and at which state.
    fsynced : dict of Ref to int
        Inodes that were fsynced, and at which state last.
    touched : set of Ref
        Inodes that an operation was about, and their directories.
    taken : set of (Ref, bytes, Ref)
        Names that inodes lost by unlink(2), or by a rename(2) of something else to them.
    evicted : bool
        Whether inodes left the memory.
    """

    committed: State
    states: list[State]
    synced: dict[int, int] = field(default_factory=dict)
    fsynced: dict[Ref, int] = field(default_factory=dict)
    touched: set[Ref] = field(default_factory=set)
    taken: set[tuple[Ref, bytes, Ref]] = field(default_factory=set)
    evicted: bool = False


class Workload:
    """A filesystem with its reference.

    Parameters
    ----------
    fs : WritableFilesystem
        Committed.
    behaviour : str
        The kernel that changes it.

    Attributes
    ----------
    lines : list of Line
        What was done since it was mounted.
    ends : list of str
        How each fsync ended.
    """

    def __init__(self, fs: WritableFilesystem, behaviour: str) -> None:
        self.fs = fs
        fs.behaviour = Behaviour.parse(behaviour)
        self._runner = Runner(Scenario("crash", [], hex_values=True), SIZE, 0)
        self._runner.made = fs
        self._runner.synced = lambda step, how, work: self.ends.append(how)
        self.ends: list[str] = []
        self.lines: list[Line] = []
        state = seen(fs)
        self.files = Files(state)
        self.epoch = Epoch(state, [state])

    @classmethod
    def started(cls, behaviour: str, nodesize: int = 4096) -> Workload:
        """A filesystem with :data:`START` in it."""
        workload = cls(bm.create(SIZE, nodesize), behaviour)
        for line in START:
            assert workload.do(*line)
        workload.lines.clear()
        return workload

    @property
    def now(self) -> int:
        """Number of the state of now."""
        return len(self.epoch.states) - 1

    def do(self, *line: Any) -> bool:
        """Carry out an operation; False where the model says that it cannot be."""
        generation = self.fs.image.superblock.generation
        known = len(self.ends)
        if not self._carried_out(list(line)):
            return False
        self.lines.append(list(line))
        self._follow(list(line))
        self.epoch.states.append(dict(self.files.inodes))
        if self.fs.image.superblock.generation != generation:
            self._committed()
        for how in self.ends[known:]:
            self._synced(line[1].encode(), how)
        return True

    def _carried_out(self, line: Line) -> bool:
        special = getattr(self, f"_{line[0]}", None)
        try:
            if special is not None:
                special(*line[1:])
            else:
                self._runner.carry_out(parse_step("crash", len(self.lines) + 1, line))
        except OSError:
            return False
        return True

    def _drop_caches(self) -> None:
        """What is clean goes from memory; so that all of it is, data are written back before."""
        self.epoch.evicted = True
        self.fs.flush_delalloc()
        for root in self.fs.subvolume_ids:
            inodes = live_subvolume(self.fs, root).inodes
            for ino in inodes.keys() - {TOP}:
                del inodes[ino]

    def _flush(self, path: str) -> None:
        self.fs.flush_delalloc(self.fs.inode(*self.fs.resolve(path, follow=False)))

    # --------------------------------------------------------------------- the reference --

    def _follow(self, line: Line) -> None:
        """Let the reference follow an operation that succeeded."""
        name, *args = line
        files = self.files
        paths = [arg.encode() for arg in args if isinstance(arg, str)]
        before = {ref for path in paths for ref in self._around(path)}
        match name:
            case "create" | "mkdir" | "symlink" | "subvol_create":
                self._added(name, args, paths[-1])
            case "snapshot":
                self._taken(paths[1])
            case "link" | "rename" | "exchange":
                if name == "rename":
                    self._loses(paths[1])
                getattr(files, name)(*paths)
            case "unlink" | "rmdir":
                self._loses(paths[0])
                files.unlink(paths[0])
            case "write":
                files.write(paths[0], args[1], data_of(args[3], args[1], args[2]))
            case "truncate":
                files.truncate(paths[0], args[1])
            case "fallocate":
                files.fallocate(paths[0], *args[1:])
            case "clone_range":
                files.clone(paths[0], args[1], args[2], paths[1], args[4])
            case "chmod":
                files.chmod(paths[0], args[1])
            case "setxattr":
                files.setxattr(paths[0], paths[1], bytes.fromhex(args[2]))
            case "removexattr":
                files.setxattr(paths[0], paths[1], None)
        self.epoch.touched |= before | {ref for path in paths for ref in self._around(path)}

    def _loses(self, path: bytes) -> None:
        """A name is about to go, where there is one."""
        directory, name = self.files.parent(path)
        for entry in self.files.inodes[directory].entries:
            if entry[0] == name:
                self.epoch.taken.add((directory, *entry))

    def _around(self, path: bytes) -> Iterator[Ref]:
        """The inode of a path and its directory, as far as they are there."""
        for one in (path, path.rpartition(b"/")[0]):
            try:
                yield self.files.at(one)
            except KeyError:
                continue

    def _added(self, kind: str, args: Line, path: bytes) -> None:
        root, ino = self.fs.resolve(path, follow=False)
        mode = {"create": stat.S_IFREG | 0o600, "symlink": stat.S_IFLNK | 0o777}
        default = stat.S_IFDIR | 0o755
        data = args[0].encode() if kind == "symlink" else b""
        made = Inode(self.fs.inode(root, ino).item.mode, data)
        assert stat.S_IFMT(made.mode) == stat.S_IFMT(mode.get(kind, default))
        self.files.add(path, (root, ino), made)

    def _taken(self, path: bytes) -> None:
        """A snapshot has what its source had in this moment; subvolumes in it are left out."""
        root, ino = self.fs.resolve(path)
        state = seen(self.fs)
        self.files.inodes |= {ref: inode for ref, inode in state.items() if ref[0] == root}
        self.files.add(path, (root, ino), state[root, ino])

    # ----------------------------------------------------------------------------- commits --

    def _committed(self) -> None:
        """A commit was made. What waits for writeback is not in it: its files are as they were."""
        waiting = set(self.fs.dirty_files)
        state = seen(self.fs)
        assert state.keys() == self.files.inodes.keys()
        for ref, inode in state.items():
            if ref not in waiting:
                assert inode == self.files.inodes[ref], ref
            else:
                assert inode == replace(self.files.inodes[ref], data=inode.data), ref
        self.epoch = Epoch(state, [dict(self.files.inodes)])

    def _synced(self, path: bytes, how: str) -> None:
        ref = self.files.at(path)
        if how == "log":
            self.epoch.synced[ref[0]] = self.now
        if how != "commit":
            self.epoch.fsynced[ref] = self.now

    def listing(self, fs: Filesystem) -> dict[str, tuple[int, int, bytes]]:
        """Inode number, mode and content by path."""
        files = Files(seen(fs))
        return {
            path.decode(): (ref[1], files.inodes[ref].mode, files.inodes[ref].data)
            for path, ref in files.paths().items()
        }
