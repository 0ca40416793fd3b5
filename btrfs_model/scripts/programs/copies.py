# SPDX-License-Identifier: GPL-2.0-only
"""Programs of coreutils that read and write what is in files."""

from __future__ import annotations

import errno
import hashlib
import posixpath
import re
from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Final

import numpy as np

from btrfs_model.base.counters import uncounted
from btrfs_model.mount.log.state import log_tree_id
from btrfs_model.scripts.files import Stat, TreeFile, fail
from btrfs_model.scripts.mounted import Mounted, MountedFile
from btrfs_model.scripts.program import Program, UsageError, options, quoted, reason, say, size_of
from btrfs_model.scripts.programs.attributes.owners import set_owner
from btrfs_model.scripts.programs.attributes.xattrs import xattrs
from btrfs_model.scripts.programs.names import (
    each,
    make_folder,
    no_operand,
    read_link,
    set_mode,
    symlink,
)
from btrfs_model.shell.state import UnknownError
from btrfs_model.shell.streams import Endless, Pipe, Stream

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from btrfs_model.scripts.computer import Computer
    from btrfs_model.scripts.mounted import Mounted
    from btrfs_model.shell.state import Shell

_PIECE: Final = 1 << 20
_ALWAYS: Final = ("--reflink", "--reflink=always")


def _cloned(computer: Computer, source: str, target: str) -> bool:
    """Clone a file to a new name together with others; return False where it is for itself."""
    first, second = computer.place(computer.absolute(source)), computer.place(
        computer.absolute(target))  # fmt: skip
    if first is None or second is None or first[0] is not second[0]:
        return False
    try:
        return first[0].collected.clone(first[1], second[1])
    except OSError:
        return False


def _cp(computer: Computer, shell: Shell, arguments: list[str]) -> int:
    if len(arguments) == 3 and arguments[0] in _ALWAYS and _cloned(computer, *arguments[1:]):
        return 0
    given, paths = options(
        arguments, "rRapfvdLPTn", "t",
        long=("reflink", "archive", "recursive", "sparse=", "preserve", "no-target-directory"),
        program_name="cp",
    )  # fmt: skip
    if "t" in given:
        paths = [*paths, given["t"]]
    if len(paths) < 2:
        return no_operand(shell, "cp", "file ", "".join(paths))
    *sources, target = paths
    whole = computer.absolute(target)
    seen = computer.stat(whole)
    into = seen is not None and seen.is_dir and "T" not in given
    if len(sources) > 1 and not into:
        say(shell, f"cp: target '{target}': Not a directory\n")
        return 1
    recursive = bool({"r", "R", "a", "archive", "recursive"} & set(given))
    keeps = (
        "all" if {"a", "archive"} & set(given) else "times" * bool({"p", "preserve"} & set(given))
    )
    reflink = given.get("reflink", "auto") or "always"
    status = 0
    for source in sources:
        name = f"{whole.rstrip('/')}/{posixpath.basename(source.rstrip('/'))}" if into else whole
        try:
            _copy(computer, computer.absolute(source).rstrip("/") or "/", name, recursive=recursive,
                  keeps=keeps, reflink=reflink)  # fmt: skip
        except _IntoItselfError:
            shown = f"{target.rstrip('/')}/{posixpath.basename(source.rstrip('/'))}"
            say(shell, f"cp: cannot copy a directory, '{source}', into itself, "
                       f"'{shown if into else target}'\n")  # fmt: skip
            status = 1
        except OSError as error:
            if (
                error.errno == errno.ENOENT
                and computer.stat(computer.absolute(source), False) is None
            ):
                say(shell, f"cp: cannot stat '{source}': {reason(error)}\n")
            elif error.errno == errno.EISDIR:
                say(shell, f"cp: -r not specified; omitting directory '{source}'\n")
            elif reflink == "always":
                say(shell, f"cp: failed to clone '{target}' from '{source}': {reason(error)}\n")
            else:
                say(shell, f"cp: cannot create regular file '{target}': {reason(error)}\n")
            status = 1
    return status


class _IntoItselfError(Exception):
    """A directory would be copied into itself."""


def _copy(
    computer: Computer, source: str, path: str, *, recursive: bool, keeps: str, reflink: str
) -> None:
    seen = computer.stat(source, follow=not recursive)
    if seen is None:
        raise fail(errno.ENOENT, source)
    if seen.is_dir:
        if not recursive:
            raise fail(errno.EISDIR, source)
        if computer.stat(path) is None:
            make_folder(computer, path, seen.mode & 0o7777)
        made = computer.stat(path)
        for name in computer.listdir(source):
            inner = computer.stat(f"{source}/{name}", follow=False)
            if inner is not None and made is not None and inner.same == made.same:
                raise _IntoItselfError
            _copy(computer, f"{source}/{name}", f"{path}/{name}", recursive=True, keeps=keeps,
                  reflink=reflink)  # fmt: skip
    elif seen.is_link:
        symlink(computer, read_link(computer, source), path)
    elif not seen.is_file and recursive:
        raise UnknownError("cp: only regular files, directories and links are copied")
    else:
        _copy_file(computer, source, seen, path, reflink)
    if keeps and not seen.is_link:
        # a new owner takes capabilities away
        set_owner(computer, path, seen.uid, seen.gid, follow=False)
        if keeps == "all":
            _copy_xattrs(computer, source, path)
        if not _copy_acls(computer, source, path):
            set_mode(computer, path, seen.mode & 0o7777)
        change_times(computer, path, seen.atime, seen.mtime)


def _copy_xattrs(computer: Computer, source: str, path: str) -> None:
    first, second = computer.place(source), computer.place(path)
    if first is not None and second is not None:
        fs, name = second[0].fs, second[0].inside(second[1])
        for each_name, value in first[0].fs.file(first[0].inside(first[1])).xattrs().items():
            fs.setxattr(name, each_name, value)


def _copy_acls(computer: Computer, source: str, path: str) -> bool:
    """Copy ACLs, which have the mode; return False where there are none."""
    first, second = computer.place(source), computer.place(path)
    if first is None or second is None:
        return False
    found = xattrs(*first)
    acls = {name: value for name, value in found.items() if name.startswith("system.posix_acl_")}
    for name, value in acls.items():
        second[0].fs.setxattr(second[0].inside(second[1]), name, value)
    return "system.posix_acl_access" in acls


def _copy_file(computer: Computer, source: str, seen: Stat, path: str, reflink: str) -> None:
    """Copy a file: cloned where both are on one filesystem, as cp of coreutils 9 does."""
    first, second = computer.place(source), computer.place(path)
    with computer.open(path, "w", seen.mode & 0o777) as output:
        one_fs = first is not None and second is not None and first[0].fs is second[0].fs
        if reflink != "never" and one_fs:
            assert first is not None
            assert second is not None
            try:
                with computer.timed("clone"):
                    if seen.size:
                        (one, name), (other, target) = first, second
                        one.fs.clone_range(one.inside(name), other.inside(target), 0, 0, seen.size)
                return
            except OSError:
                if reflink == "always":
                    raise
        elif reflink == "always":
            raise fail(errno.EXDEV, path)
        with computer.open(source, "r") as data:
            while piece := data.read(_PIECE):
                output.write(piece)


def change_times(computer: Computer, path: str, atime: int, mtime: int) -> None:
    """Set the times of a file."""
    found = computer.place(path)
    if found is None:
        computer.tree.find(path).mtime = mtime
    else:
        found[0].fs.utimes(found[0].inside(found[1]), atime, mtime)


def cut(computer: Computer, path: str, size: int) -> None:
    """Make a file so many bytes long."""
    found = computer.place(path)
    if found is None:
        node = computer.node(path)
        del node.data[size:]
        node.data += bytes(size - len(node.data))
    else:
        with MountedFile(*found, "r+") as file, computer.timed("truncate"):
            file.fs.truncate(file.name, size)


def _truncate(computer: Computer, shell: Shell, arguments: list[str]) -> int:
    given, paths = options(arguments, "c", "sr", long=("size=", "reference="),
                           program_name="truncate")  # fmt: skip
    if {"r", "reference"} & set(given):
        raise UnknownError("truncate: -r is not known")
    told = given.get("s", given.get("size"))
    if told is None or not paths:
        what = "missing file operand" if told is not None else (
            "you must specify either '--size' or '--reference'")  # fmt: skip
        say(shell, f"truncate: {what}\nTry 'truncate --help' for more information.\n")
        return 1
    relative = told[0] if told[:1] in tuple("+-<>/%") else ""
    try:
        amount = size_of(told.removeprefix(relative))
    except UsageError:
        say(shell, f"truncate: Invalid number: '{told}'\n")
        return 1

    def change(path: str) -> None:
        if path.startswith("/dev/") or path in computer.devices:
            computer.device(path).size = amount
        seen = computer.stat(path)
        if seen is None:
            if "c" in given:
                return
            computer.write(path)
        now = seen.size if seen is not None else 0
        size = {"+": now + amount, "-": max(0, now - amount), "<": min(now, amount),
                ">": max(now, amount), "/": now - now % amount if amount else 0,
                "%": -(-now // amount) * amount if amount else 0}.get(relative, amount)  # fmt: skip
        found = computer.place(path)
        if found is None and size > 1 << 26:
            # an image: it is a device of this size, its bytes are those of a filesystem
            computer.add_device(path, size)
            return
        cut(computer, path, size)

    return each(computer, shell, paths, change, "truncate: cannot open '{}' for writing")


def fsync(computer: Computer, path: str, *, data_only: bool = False) -> str:
    """Call fsync; return how it ended: ``log``, ``commit`` or ``none``."""
    found = computer.place(path)
    if found is None:
        computer.tree.find(path)
        return "none"
    mounted, inside = found
    fs = mounted.fs
    with computer.timed(f"fsync {path}") as step:
        mounted.before_writeback(mounted.inside(inside))
        call = fs.fdatasync if data_only else fs.fsync
        how = call(mounted.inside(inside))
        if how == "log" and computer.disk is not None:
            with uncounted():
                step.log, step.nodesize = _log_places(mounted, inside), fs.nodesize
    return how


def _log_places(mounted: Mounted, path: str) -> NDArray[np.int64]:
    """Return where the blocks of a log are on the device, all copies."""
    fs = mounted.fs
    tree = fs.writer.tree(log_tree_id(mounted.inode(path).root))
    places = [place for block in tree.blocks() for place in fs.image.copies(block.logical)]
    return np.array(places, np.int64)


def _sync(computer: Computer, shell: Shell, arguments: list[str]) -> int:
    given, paths = options(arguments, "fd", long=("file-system", "data"), program_name="sync")
    if paths and not {"f", "file-system"} & set(given):
        return each(computer, shell, paths,
                    lambda path: void(fsync(computer, path, data_only="d" in given)),
                    "sync: error opening '{}'")  # fmt: skip
    try:
        for mounted in computer.mounts.values():
            if not mounted.is_read_only:
                sync_filesystem(mounted, cyclic=not paths)
    except OSError as error:
        say(shell, f"sync: error syncing {quoted(paths[0])}: {reason(error)}\n")
        return 1
    return 0


def sync_filesystem(mounted: Mounted, *, cyclic: bool) -> None:
    """Do what syncfs(2) does, or sync(2) with `cyclic`, which tells of no error."""
    with mounted.computer.timed("sync"), suppress(*[OSError] * cyclic):
        mounted.fs.sync(cyclic=cyclic)


def void(_: object) -> None:
    """Return nothing."""


def inputs(
    computer: Computer,
    shell: Shell,
    name: str,
    paths: list[str],
    told: tuple[str, str] = ("{}", "{}"),
) -> Iterator[tuple[str, Stream | None]]:
    """Open what a program reads: its files, or its standard input.

    `told`: how it names a file that cannot be opened, and a directory.
    """
    for path in paths or ["-"]:
        try:
            if path == "-":
                shell.files[0].read(0)
                yield "-", shell.files[0]
                continue
            seen = computer.stat(path)
            if seen is not None and seen.is_dir:
                raise fail(errno.EISDIR, path)
            with computer.open(path, "r") as stream:
                yield path, stream
        except OSError as error:
            form = told[error.errno == errno.EISDIR]
            shown = form.format(quoted(path) if form == "{}" else path)
            say(shell, f"{name}: {shown}: {reason(error)}\n")
            yield path, None


def _identity(stream: Stream) -> tuple[int, int] | None:
    """Return what two open files of one inode have in common; None for what is no file."""
    if isinstance(stream, TreeFile):
        return 0, stream.node.ino
    return stream.same if isinstance(stream, MountedFile) else None


def _is_left(stream: Stream) -> bool:
    """Whether there is more to read of a file."""
    if isinstance(stream, TreeFile):
        return stream.at < len(stream.node.data)
    return isinstance(stream, MountedFile) and stream.at < stream.size


def _cat(computer: Computer, shell: Shell, arguments: list[str]) -> int:
    given, paths = options(arguments, "nAevtTE", program_name="cat")
    if given:
        from btrfs_model.scripts.host import run_host

        return run_host(computer, shell, "cat", arguments)
    status = 0
    output = _identity(shell.files[1])
    for name, stream in inputs(computer, shell, "cat", paths):
        if stream is None:
            status = 1
            continue
        if output is not None and _identity(stream) == output and _is_left(stream):
            say(shell, f"cat: {name}: input file is output file\n")
            status = 1
            continue
        if stream.endless and isinstance(shell.files[1], Pipe):
            return shell.files[1].hand_over(Endless("cat", partial(stream.read, _PIECE)))
        for piece in stream.pieces():
            shell.files[1].write(piece)
    return status


def _digest(kind: str) -> Program:
    def run(computer: Computer, shell: Shell, arguments: list[str]) -> int:
        name = f"{kind}sum"
        given, paths = options(arguments, "bt", "c", long=("check", "status", "quiet"),
                               program_name=name)  # fmt: skip
        if {"c", "check"} & set(given):
            return _check_digests(computer, shell, name, kind, [given.get("c", ""), *paths])
        status = 0
        for path, stream in inputs(computer, shell, name, paths):
            if stream is None:
                status = 1
                continue
            shell.write(f"{_sum(kind, stream)}  {path}\n")
        return status

    return run


def _sum(kind: str, stream: Stream) -> str:
    digest = hashlib.new(kind)
    for piece in stream.pieces():
        digest.update(piece)
    return digest.hexdigest()


def _check_digests(computer: Computer, shell: Shell, name: str, kind: str, paths: list[str]) -> int:
    bad = 0
    for _, stream in inputs(computer, shell, name, [one for one in paths if one]):
        text = stream.read().decode("utf-8", "surrogateescape") if stream else ""
        for line in text.splitlines():
            wanted, _, path = line.partition("  ")
            try:
                with computer.open(path, "r") as file:
                    same = _sum(kind, file) == wanted
            except OSError as error:
                say(shell, f"{name}: {path}: {reason(error)}\n")
                shell.write(f"{path}: FAILED open or read\n")
                bad += 1
                continue
            shell.write(f"{path}: {'OK' if same else 'FAILED'}\n")
            bad += not same
    if bad:
        plural = "checksums" if bad > 1 else "checksum"
        say(shell, f"{name}: WARNING: {bad} computed {plural} did NOT match\n")
    return int(bool(bad))


def _head(computer: Computer, shell: Shell, arguments: list[str]) -> int:
    if arguments and re.fullmatch(r"-\d+", arguments[0]):
        arguments = [f"-n{arguments[0][1:]}", *arguments[1:]]
    given, paths = options(arguments, "qv", "nc", long=("lines=", "bytes="), program_name="head")
    count = given.get("c", given.get("bytes"))
    lines = given.get("n", given.get("lines", "10"))
    status = 0
    told = "cannot open '{}' for reading", "error reading '{}'"
    titled = 0
    for path, stream in inputs(computer, shell, "head", paths, told):
        opened = stream is not None or computer.stat(path) is not None
        if opened and len(paths) > 1 and "q" not in given:
            shell.write(f"{chr(10) if titled else ''}==> {path} <==\n")
            titled += 1
        if stream is None:
            status = 1
            continue
        if count is not None:
            if count.startswith("-"):
                shell.files[1].write(stream.read()[: -size_of(count[1:]) or None])
                continue
            left = size_of(count)
            while left and (piece := stream.read(min(left, _PIECE))):
                shell.files[1].write(piece)
                left -= len(piece)
        elif lines.startswith("-"):
            whole = stream.read().splitlines(keepends=True)
            shell.files[1].write(b"".join(whole[: -int(lines[1:]) or None]))
        else:
            for _ in range(int(lines)):
                shell.files[1].write(stream.read_line())
    return status


def _yes(computer: Computer, shell: Shell, arguments: list[str]) -> int:
    del computer
    _, words = options(arguments, program_name="yes")
    line = f"{' '.join(words) or 'y'}\n".encode("utf-8", "surrogateescape")
    lines = line * max(1, _PIECE // len(line))
    if isinstance(shell.files[1], Pipe):
        return shell.files[1].hand_over(Endless("yes", lambda: lines))
    raise UnknownError("yes has no end: read so many lines of it (| head)")


def _tee(computer: Computer, shell: Shell, arguments: list[str]) -> int:
    given, paths = options(arguments, "ai", program_name="tee")
    data = shell.files[0].read()
    status = 0
    for path in paths:
        try:
            computer.write(path, data, "a" if "a" in given else "w")
        except OSError as error:
            say(shell, f"tee: {quoted(path)}: {reason(error)}\n")
            status = 1
    shell.files[1].write(data)
    return status


PROGRAMS: Final[dict[str, Program]] = {
    "cp": _cp, "truncate": _truncate, "sync": _sync, "cat": _cat, "head": _head,
    "tee": _tee, "yes": _yes, "md5sum": _digest("md5"), "sha1sum": _digest("sha1"),
    "sha256sum": _digest("sha256"),
}  # fmt: skip
