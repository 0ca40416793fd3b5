# SPDX-License-Identifier: GPL-2.0-only
"""Random calls with fsyncs in between, at the end of which a filesystem crashes.

A call is a tuple, its name first. :data:`sequences` are strategies of hypothesis; :class:`Crash`
makes the calls, in a filesystem of :data:`formats`.
"""

import contextlib
import itertools
import stat
from typing import Any

from hypothesis import strategies as st

from btrfs_model.behaviour import Behaviour
from btrfs_model.mount.live_inode import LiveInode
from btrfs_model.mount.writable import WritableFilesystem

SIZE = 128 << 20
BLOCK = 4096

Call = tuple[Any, ...]

_folders = st.sampled_from(["", "", "a", "a", "a/b", "d", "s", "s/e"])
_names = st.sampled_from(["f", "f", "g", "h", "b", "e", "long" * 40])
_paths = st.builds(lambda folder, name: f"{folder}/{name}".lstrip("/"), _folders, _names)
_FILES = ("f", "a/f", "a/g", "a/b/f", "d/h", "s/f", "s/e/f")
_files = st.sampled_from(_FILES)
_lengths_of_names = st.sampled_from([4, 60, 60, 240])
_offsets = st.builds(lambda block, rest: block * BLOCK + rest, st.integers(0, 12),
                     st.sampled_from([0, 0, 0, 5, 2000]))  # fmt: skip
_aligned = st.integers(0, 12).map(lambda block: block * BLOCK)
_lengths = st.sampled_from([1, 9, 2000, BLOCK, 3 * BLOCK, 70_000])
_xattrs = st.sampled_from(["user.a", "user.b", "user." + "n" * 200, "trusted.t"])


def _numbered(folder: str, number: int, length: int) -> str:
    return f"{folder}/{f'l{number}'.ljust(length, 'x')}".lstrip("/")


def _old_links_of(path: str) -> list[str]:
    """Further names of a file, in its folder, that every filesystem begins with."""
    folder, number = path.rpartition("/")[0], 10 * _FILES.index(path)
    return [_numbered(folder, number + name, 60) for name in range(2)]


_old_links = st.sampled_from([link for path in _FILES for link in _old_links_of(path)])


def _write(path: str, offset: int, length: int, byte: int) -> Call:
    return "write", path, offset, bytes([byte]) * length


def call(name: str, *arguments: st.SearchStrategy[Any]) -> st.SearchStrategy[Call]:
    return st.tuples(st.just(name), *arguments)


_fsyncs = st.one_of(
    call("fsync", st.sampled_from(["", "a", "a/b", "d", "s", "s/e"])),
    call("fsync", _paths),
    call("fsync_held"),
)
_changes = st.one_of(
    call("create", _files),
    call("create", _paths),
    call("mkdir", _paths),
    call("symlink", st.sampled_from(["a", "x" * 500]), _paths),
    call("link", _files, _paths),
    call("links", _files, _folders, st.integers(2, 40), _lengths_of_names),
    call("unlink", _paths),
    call("unlink", _files),
    call("unlink", _old_links),
    call("rename", _old_links, _paths),
    call("unlinks", _folders, st.integers(2, 40), _lengths_of_names),
    call("rmdir", _paths),
    call("rename", _paths, _paths),
    call("rename", _files, _paths, st.sampled_from([0, 2])),
    st.builds(_write, _files, _offsets, _lengths, st.integers(0, 255)),
    st.builds(_write, _files, _offsets, _lengths, st.integers(0, 255)),
    call("truncate", _files, _offsets),
    call("punch_hole", _files, _offsets, _lengths),
    call("fallocate", _files, _offsets, _lengths),
    call("clone_range", _files, _files, st.just(0), _aligned, st.just(0)),
    call("setxattr", _paths, _xattrs, st.binary(max_size=300)),
    call("removexattr", _files, _xattrs),
    call("chmod", _paths, st.sampled_from([0o600, 0o755, 0o4711])),
    call("mknod", _paths, st.sampled_from([stat.S_IFIFO, stat.S_IFSOCK, stat.S_IFCHR])),
    call("creates", _folders, st.integers(2, 60), _lengths_of_names),
    call("hold", _files),
    call("zero_range", _files, _offsets, _lengths),
    call("create_subvolume", _paths),
    call("snapshot", st.sampled_from(["", "s"]), _paths, st.booleans()),
)


def _ends(path: str) -> st.SearchStrategy[list[Call]]:
    """A change of what is fsynced then: another fsync would say that there is nothing to do."""
    change = st.one_of(
        st.builds(_write, st.just(path), _offsets, _lengths, st.integers(0, 255)),
        call("link", st.just(path), _paths),
        call("links", st.just(path), _folders, st.integers(2, 40), _lengths_of_names),
        call("rename", _paths, st.just(path)),
        call("create", st.just(path)),
        call("truncate", st.just(path), _offsets),
        call("removexattr", st.just(path), st.just("user.a")),
        call("unlink", st.sampled_from(_old_links_of(path))),
        call("rename", st.sampled_from(_old_links_of(path)), _paths),
        call("setxattr", st.just(path), _xattrs, st.binary(max_size=300)),
        call("chmod", st.just(path), st.sampled_from([0o600, 0o755, 0o4711])),
    )
    return st.builds(lambda made: [made, ("fsync", path)], change)


def _folder_ends(folder: str) -> st.SearchStrategy[list[Call]]:
    """The same with names in a folder."""
    inside = _names.map(lambda name: f"{folder}/{name}".lstrip("/"))
    change = st.one_of(
        call("unlink", inside),
        call("rename", inside, _paths),
        call("rename", _paths, inside),
        call("creates", st.just(folder), st.integers(2, 60), _lengths_of_names),
        call("unlinks", st.just(folder), st.integers(2, 60), _lengths_of_names),
    )
    return st.builds(lambda made: [made, ("fsync", folder)], change)


_last = st.one_of(
    *[_files.flatmap(_ends)] * 4,
    *[_folders.flatmap(_folder_ends)] * 2,
    _fsyncs.map(lambda fsync: [fsync]),
    st.just([("sync",)]),
)
_rounds = st.builds(
    lambda calls, last: calls + last, st.lists(_changes, min_size=1, max_size=8), _last
)
sequences = st.lists(_rounds, min_size=6, max_size=20).map(
    lambda rounds: list(itertools.chain(*rounds))
)
formats = st.fixed_dictionaries(
    {
        "nodesize": st.sampled_from([4096, 16384]),
        "no_holes": st.booleans(),
        "extref": st.sampled_from([True, True, False]),
        "csum": st.sampled_from(["crc32c", "crc32c", "xxhash", "sha256"]),
        "compress": st.sampled_from([None, None, "zlib", "lzo", "zstd"]),
    }
)


class Crash:
    """A filesystem that went through calls, those of them that fail left out.

    Parameters
    ----------
    options : dict of str
        Of mkfs.btrfs and mount.
    behaviour : str
        The kernel as which it logs.
    calls : list of tuple
        What is called; before that it has a few files, committed.

    Attributes
    ----------
    ends : list of str
        How each fsync ended.
    """

    def __init__(self, options: dict[str, Any], behaviour: str, calls: list[Call]) -> None:
        self.fs = WritableFilesystem.mkfs(SIZE, **options)
        self.fs.behaviour = Behaviour.parse(behaviour)
        self.ends: list[str] = []
        self.held: list[LiveInode] = []
        for folder in ("a", "a/b", "d"):
            self.fs.mkdir(folder)
        self.fs.create_subvolume("s")
        self.fs.mkdir("s/e")
        for number, path in enumerate(_FILES):
            self.fs.create(path)
            self.fs.write(path, 0, bytes([number]) * (number * 3000))
            self.fs.setxattr(path, "user.a", b"before")
            for link in _old_links_of(path):
                self.fs.link(path, link)
        self.fs.sync()
        for name, *arguments in calls:
            with contextlib.suppress(OSError):
                self.make(name, arguments)

    def make(self, name: str, arguments: list[Any]) -> None:
        match name, arguments:
            case "links", [path, folder, count, length]:
                for number in range(count):
                    self.fs.link(path, _numbered(folder, number, length))
            case "unlinks", [folder, count, length]:
                for number in range(count):
                    self.fs.unlink(_numbered(folder, number, length))
            case "creates", [folder, count, length]:
                for number in range(count):
                    self.fs.create(_numbered(folder, number, length))
            case "hold", [path]:
                self.held.append(self.fs.hold(path))
            case "fsync_held", []:
                for inode in self.held[-1:]:
                    self.ends.append(self.fs.fsync_inode(inode))
            case "fsync", [path]:
                self.ends.append(self.fs.fsync(path))
            case _:
                getattr(self.fs, name)(*arguments)
