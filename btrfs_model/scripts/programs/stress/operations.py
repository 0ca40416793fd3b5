# SPDX-License-Identifier: GPL-2.0-only
"""Operations of fsstress on names and attributes."""

from __future__ import annotations

import errno
import stat
from typing import Final

from btrfs_model.scripts.programs.attributes.xattrs import xattrs
from btrfs_model.scripts.programs.copies import fsync
from btrfs_model.scripts.programs.stress.fsstress import Process
from btrfs_model.scripts.programs.stress.names import (
    ANY,
    ANY_DIR,
    DEV,
    DIR,
    NOT_DIR,
    REG,
    REGULAR,
    SYM,
    Entry,
)
from btrfs_model.volume.listing import to_fs_flags

_LONGEST: Final = 4096
_CHARACTERS: Final = b"0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ\0"
_CREATE: Final = 1
_REPLACE: Final = 2
_FLAGS: Final = {0: "none", _CREATE: "create", _REPLACE: "replace"}
_EXCHANGE: Final = 2
_WHITEOUT: Final = 4
_RENAMES: Final = {0: "", 1: "NOREPLACE", _EXCHANGE: "EXCHANGE", _WHITEOUT: "WHITEOUT"}
_PROJECT: Final = 16


def _folder(process: Process, kinds: tuple[int, ...], number: int) -> tuple[Entry | None, int]:
    folder = process.names.choose(kinds, number)
    return folder, folder.number if folder else -1


def _added(process: Process, what: str, number: int, parent: int) -> None:
    process.say(f"{what} add id={number},parent={parent}")


# -------------------------------------------------------------------------------- new names --


def creat(process: Process, number: int) -> None:
    """Make a file."""
    folder, parent = _folder(process, ANY_DIR, number)
    process.draw()
    path, new = process.names.new(folder, REG)
    status = process.ends("create", lambda: process.fs.create(process.inside(path), 0o666))
    if not status:
        process.names.add(REG, new, parent)
    process.say(f"creat {path} x:0 {status} 0")
    _added(process, "creat", new, parent)


def mkdir(process: Process, number: int) -> None:
    """Make a directory."""
    folder, parent = _folder(process, ANY_DIR, number)
    path, new = process.names.new(folder, DIR)
    status = process.ends("mkdir", lambda: process.fs.mkdir(process.inside(path), 0o777))
    if not status:
        process.names.add(DIR, new, parent)
    process.say(f"mkdir {path} {status}")
    _added(process, "mkdir", new, parent)


def mknod(process: Process, number: int) -> None:
    """Make a device node."""
    folder, parent = _folder(process, ANY_DIR, number)
    path, new = process.names.new(folder, DEV)
    mode = stat.S_IFCHR | 0o444
    status = process.ends("mknod", lambda: process.fs.mknod(process.inside(path), mode, 0))
    if not status:
        process.names.add(DEV, new, parent)
    process.say(f"mknod {path} {status}")
    _added(process, "mknod", new, parent)


def symlink(process: Process, number: int) -> None:
    """Make a symbolic link to nothing."""
    folder, parent = _folder(process, ANY_DIR, number)
    path, new = process.names.new(folder, SYM)
    length = process.draw() % _LONGEST
    target = bytearray(b"x" * length)
    for at in range(10, length - 1, 10):
        target[at] = ord("/")
    status = process.ends(
        "symlink", lambda: process.fs.symlink(bytes(target), process.inside(path))
    )
    if status == errno.ENAMETOOLONG:
        # it goes down the path then, and ends in a directory without a name
        status = errno.ENOENT
    if not status:
        process.names.add(SYM, new, parent)
    process.say(f"symlink {path} {status}")
    _added(process, "symlink", new, parent)


def link(process: Process, number: int) -> None:
    """Make another name of a file."""
    source = process.names.choose(NOT_DIR, number)
    if source is None:
        process.say("link - no file")
        return
    old = process.names.path(source)
    folder, parent = _folder(process, (DIR,), process.draw())
    path, new = process.names.new(folder, source.kind)
    status = process.ends(
        "link", lambda: process.fs.link(process.inside(old), process.inside(path))
    )
    if not status:
        process.names.add(source.kind, new, parent, source.xattrs)
    process.say(f"link {old} {path} {status}")
    _added(process, "link", new, parent)


# ---------------------------------------------------------------------------- names that go --


def unlink(process: Process, number: int) -> None:
    """Remove a name of a file."""
    entry = process.names.choose(NOT_DIR, number)
    if entry is None:
        process.say("unlink - no file")
        return
    path = process.names.path(entry)
    status = process.ends("unlink", lambda: process.fs.unlink(process.inside(path)))
    if not status:
        process.names.remove(entry)
    process.say(f"unlink {path} {status}")
    if not status:
        process.say(f"unlink del entry: id={entry.number},parent={entry.parent}")


def rmdir(process: Process, number: int) -> None:
    """Remove a directory."""
    entry = process.names.choose((DIR,), number)
    if entry is None:
        process.say("rmdir - no directory")
        return
    path = process.names.path(entry)
    status = process.ends("rmdir", lambda: process.fs.rmdir(process.inside(path)))
    if not status:
        process.names.remove(entry)
    process.say(f"rmdir {path} {status}")
    if not status:
        process.say(f"rmdir del entry: id={entry.number},parent={entry.parent}")


def rename(process: Process, number: int, flags: int = 0) -> None:
    """Rename, with the flags of renameat2(2)."""
    names = process.names
    entry = names.choose((DEV,) if flags == _WHITEOUT else ANY, number)
    if entry is None:
        process.say("rename - no source filename")
        return
    old = names.path(entry)
    other: Entry | None = None
    if flags == _EXCHANGE:
        other = names.choose((entry.kind,), process.draw())
        assert other is not None
        path, new, parent = names.path(other), other.number, other.parent
        if entry.kind == DIR and (names.is_above(entry, other) or names.is_above(other, entry)):
            process.say(f"rename(REXCHANGE) {old} and {path} have ancestor-descendant relationship")
            return
    else:
        folder, parent = _folder(process, (DIR,), process.draw())
        path, new = names.new(folder, entry.kind)
    status = process.ends(
        "rename", lambda: process.fs.rename(process.inside(old), process.inside(path), flags)
    )
    was = entry.number, entry.parent
    if not status:
        _renamed(process, entry, other, (new, parent), flags)
    process.say(f"rename({_RENAMES[flags]}) {old} to {path} {status}")
    if not status:
        process.say(f"rename source entry: id={was[0]},parent={was[1]}")
        process.say(f"rename target entry: id={new},parent={parent}")


def _renamed(
    process: Process, entry: Entry, other: Entry | None, to: tuple[int, int], flags: int
) -> None:
    names, xattrs_before = process.names, entry.xattrs
    if entry.kind in ANY_DIR:
        names.moved(entry.number, to[0], swapped=flags == _EXCHANGE)
    if flags == _WHITEOUT:
        entry.xattrs = 0
    elif other is not None:
        entry.xattrs, other.xattrs = other.xattrs, xattrs_before
        return
    else:
        names.remove(entry)
    names.add(entry.kind, *to, xattrs_before)


# ------------------------------------------------------------------------------- attributes --


def _any(process: Process, number: int) -> str:
    entry = process.names.choose(ANY, number)
    return process.names.path(entry) if entry else "."


def chown(process: Process, number: int) -> None:
    """Change the owners of a file."""
    path = _any(process, number)
    user, group = process.draw(), process.draw()
    mask = (1 << process.draw() % process.set.modulo) - 1
    user, group = user & mask, group & mask
    status = process.ends("chown", lambda: process.fs.chown(process.inside(path), user, group,
                                                            follow=False))  # fmt: skip
    process.say(f"chown {path} {user}/{group} {status}")


def setxattr(process: Process, number: int) -> None:
    """Set the number of a project, which btrfs does not have: 0 alone goes."""
    path = _any(process, number)
    refused = process.opens(path)
    project = process.draw()
    project &= (1 << process.draw() % min(process.set.modulo, _PROJECT)) - 1
    failed = refused or project or process.ends(
        "setflags", lambda: process.fs.chattr(process.inside(path), 0)
    )  # fmt: skip
    process.say(f"setxattr {path} {project} {-1 if failed else 0}")


def getattr_(process: Process, number: int) -> None:
    """Read the flags of a file."""
    path = _any(process, number)
    refused = process.opens(path)
    flags = 0 if refused else to_fs_flags(
        process.mounted.inode(f"{process.home}/{path}").item.flags)  # fmt: skip
    process.say(f"getattr {path} {flags} {-1 if refused else 0}")


def _with_xattrs(process: Process, what: str, number: int) -> tuple[Entry, str] | None:
    entry = process.names.choose((DIR, *REGULAR, 5), number)
    if entry is None:
        process.say(f"{what} - no filename")
        return None
    return entry, process.names.path(entry)


def _xattr_name(process: Process, entry: Entry) -> str:
    return f"user.x{process.draw() % entry.xattrs + 1 if entry.xattrs else 0}"


def _xattrs(process: Process, path: str) -> dict[str, bytes]:
    return xattrs(process.mounted, f"{process.home}/{path}")


def getfattr(process: Process, number: int) -> None:
    """Read an extended attribute."""
    found = _with_xattrs(process, "getfattr", number)
    if found is None:
        return
    entry, path = found
    name = _xattr_name(process, entry)
    value = _xattrs(process, path).get(name)
    if value is None:
        process.say(f"getfattr file {path} name {name} failed {errno.ENODATA}")
    else:
        process.say(f"getfattr file {path} name {name} value length {len(value)} 0")


def listfattr(process: Process, number: int) -> None:
    """List extended attributes."""
    found = _with_xattrs(process, "listfattr", number)
    if found is None:
        return
    path = found[1]
    length = sum(len(name) + 1 for name in _xattrs(process, path))
    process.say(f"listfattr {path} buffer length {length} 0" if length
                else f"listfattr {path} - has no extended attributes")  # fmt: skip


def removefattr(process: Process, number: int) -> None:
    """Remove an extended attribute."""
    found = _with_xattrs(process, "removefattr", number)
    if found is None:
        return
    entry, path = found
    name = _xattr_name(process, entry)
    status = process.ends("removexattr", lambda: process.fs.removexattr(process.inside(path), name))
    process.say(f"removefattr file {path} name {name} {status}")


def setfattr(process: Process, number: int) -> None:
    """Set an extended attribute."""
    found = _with_xattrs(process, "setfattr", number)
    if found is None:
        return
    entry, path = found
    flags = 0
    if entry.xattrs and process.draw() % 2:
        which = process.draw() % entry.xattrs + 1
        flags = _REPLACE if process.draw() % 2 else 0
    else:
        which = entry.xattrs + 1
        flags = _CREATE if process.draw() % 2 else 0
    count = process.draw() % 101
    value = bytes(_CHARACTERS[process.draw() % len(_CHARACTERS)] for _ in range(count))
    name = f"user.x{which}"
    status = process.ends(
        "setxattr", lambda: process.fs.setxattr(process.inside(path), name, value, flags)
    )
    if not status:
        entry.xattrs += 1
    process.say(f"setfattr file {path} name {name} flag {_FLAGS[flags]} value length {count}: "
                f"{status}")  # fmt: skip


# ------------------------------------------------------------------------ looking, and syncs --


def stat_(process: Process, number: int) -> None:
    """Look at a name."""
    entry = process.names.choose(ANY, number)
    process.say(f"stat {process.names.path(entry)} 0" if entry else "stat - no entries")


def readlink(process: Process, number: int) -> None:
    """Read where a symbolic link leads."""
    entry = process.names.choose((SYM,), number)
    process.say(f"readlink {process.names.path(entry)} 0" if entry else "readlink - no filename")


def getdents(process: Process, number: int) -> None:
    """List a directory."""
    entry = process.names.choose(ANY_DIR, number)
    process.say(f"getdents {process.names.path(entry) if entry else '.'} 0")


def bulkstat(process: Process, number: int) -> None:
    """Ask XFS for inodes, which is nothing here."""
    process.say(f"bulkstat nent {number % 999 + 2} total 0")


def bulkstat1(process: Process, number: int) -> None:
    """Ask XFS for an inode."""
    ino, good = number, process.draw() & 1
    if good:
        try:
            ino = process.stat(_any(process, number)).ino
        except OSError:
            ino = number
    ino = -1 if process.set.verifiable else ino
    process.say(f"bulkstat1 {'real' if good else 'random'} ino {ino} {errno.ENOTTY}")


def sync(process: Process, number: int) -> None:
    """Call syncfs."""
    del number
    status = process.ends("sync", lambda: process.fs.sync())
    process.say(f"syncfs {status}")


def fsync_(process: Process, number: int) -> None:
    """Call fsync for a file or a directory."""
    entry = process.names.choose((DIR, *REGULAR), number)
    if entry is None:
        process.say("fsync - no filename")
        return
    path = process.names.path(entry)
    fsync(process.computer, process.absolute(path))
    process.say(f"fsync {path} 0")


def fdatasync(process: Process, number: int) -> None:
    """Call fdatasync for a file."""
    found = process.opened("fdatasync", REGULAR, number)
    if found is not None:
        fsync(process.computer, process.absolute(found[0]), data_only=True)
        process.say(f"fdatasync {found[0]} 0")
