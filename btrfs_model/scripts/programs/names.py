# SPDX-License-Identifier: GPL-2.0-only
"""Programs of coreutils that make, move and remove names."""

from __future__ import annotations

import errno
import os
import posixpath
import re
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING, Final

from btrfs_model.scripts.files import Stat, fail
from btrfs_model.scripts.program import Program, options, reason, say
from btrfs_model.shell.state import UnknownError

if TYPE_CHECKING:
    from btrfs_model.scripts.computer import Computer
    from btrfs_model.shell.state import Shell


USERS: Final = {"root": 0, "daemon": 1, "bin": 2, "nobody": 65534, "fsgqa": 1000}
"""Users by their names."""
GROUPS: Final = {"root": 0, "daemon": 1, "bin": 2, "nogroup": 65534, "fsgqa": 1000}
"""Groups by their names."""


def each(
    computer: Computer, shell: Shell, paths: list[str], act: Callable[[str], None], told: str
) -> int:
    """Do something with each path; say which failed, and why."""
    status = 0
    for path in paths:
        try:
            act(computer.absolute(path))
        except OSError as error:
            say(shell, f"{told.format(path)}: {reason(error)}\n")
            status = 1
    return status


def no_operand(shell: Shell, name: str, kind: str = "", after: str = "") -> int:
    """Say that a program of coreutils has too few words."""
    told = f"missing {'destination ' * bool(after)}{kind}operand"
    behind = f" after '{after}'" if after else ""
    say(shell, f"{name}: {told}{behind}\nTry '{name} --help' for more information.\n")
    return 1


def _mkdir(computer: Computer, shell: Shell, arguments: list[str]) -> int:
    given, paths = options(arguments, "pv", "m", long=("parents", "mode="), program_name="mkdir")
    mode = given.get("m", given.get("mode"))
    parents = "p" in given or "parents" in given

    def make(path: str) -> None:
        if parents:
            parts = path.strip("/").split("/")
            for count in range(1, len(parts)):
                before = "/" + "/".join(parts[:count])
                if computer.stat(before) is None:
                    make_folder(computer, before, 0o777)
            if (seen := computer.stat(path)) is not None and seen.is_dir:
                return
        if mode is None:
            make_folder(computer, path, 0o777)
        else:
            with _no_umask(computer):
                make_folder(computer, path, _octal(mode) & 0o777)
            if _octal(mode) & 0o7000:
                set_mode(computer, path, _octal(mode))
        if "v" in given:
            shell.write(f"mkdir: created directory '{path}'\n")

    return each(computer, shell, paths, make, "mkdir: cannot create directory '{}'")


def _octal(told: str) -> int:
    if not re.fullmatch("[0-7]+", told):
        raise UnknownError(f"-m {told}: only octal numbers are known")
    return int(told, 8)


def set_mode(computer: Computer, path: str, mode: int) -> None:
    """Change the mode of a file."""
    found = computer.place(computer.absolute(path))
    if found is None:
        node = computer.node(path)
        node.mode = stat.S_IFMT(node.mode) | mode
        return
    mounted, inside = found
    mounted.may_write(path)
    with computer.timed("chmod"):
        mounted.fs.chmod(mounted.inside(inside), mode)


@contextmanager
def _no_umask(computer: Computer) -> Iterator[None]:
    """Make files with the very modes that are told."""
    umask, computer.umask = computer.umask, 0
    try:
        yield
    finally:
        computer.umask = umask


def make_folder(computer: Computer, path: str, mode: int) -> None:
    """Make a directory; its mode is before the umask."""
    found = computer.place(path)
    if found is None:
        bits = mode & ~computer.umask
        computer.tree.make(path, stat.S_IFDIR | bits, mtime=computer.time_ns())
        return
    mounted, inside = found
    mounted.may_write(path)
    if not inside.strip("/"):
        raise fail(errno.EEXIST, path)
    with computer.timed("mkdir"):
        mounted.fs.mkdir(mounted.inside(inside), mode)


def _rmdir(computer: Computer, shell: Shell, arguments: list[str]) -> int:
    _, paths = options(arguments, "v", program_name="rmdir")

    def remove(path: str) -> None:
        remove_folder(computer, path)

    status = 0
    for path in paths:
        if posixpath.basename(path.rstrip("/")) == ".":
            say(shell, f"rmdir: failed to remove '{path}': Invalid argument\n")
            status = 1
        else:
            status |= each(computer, shell, [path], remove, "rmdir: failed to remove '{}'")
    return status


def remove_folder(computer: Computer, path: str) -> None:
    """Remove an empty directory."""
    found = computer.place(path)
    if found is None:
        folder, name = computer.tree.parent(path)
        node = computer.tree.find(path, follow=False)
        if not stat.S_ISDIR(node.mode):
            raise fail(errno.ENOTDIR, path)
        if node.names:
            raise fail(errno.ENOTEMPTY, path)
        if path in computer.mounts:
            raise fail(errno.EBUSY, path)
        del folder.names[name]
        return
    mounted, inside = found
    if not inside:
        raise fail(errno.EBUSY, path)
    mounted.may_write(path)
    with computer.timed("rmdir"):
        mounted.fs.rmdir(mounted.inside(inside))


def unlink(computer: Computer, path: str) -> None:
    """Remove a name of a file."""
    found = computer.place(path)
    if found is None:
        folder, name = computer.tree.parent(path)
        node = folder.names.get(name)
        if node is None:
            raise fail(errno.ENOENT, path)
        if stat.S_ISDIR(node.mode):
            raise fail(errno.EISDIR, path)
        del folder.names[name]
        return
    mounted, inside = found
    mounted.may_write(path)
    with computer.timed("unlink"):
        mounted.fs.unlink(mounted.inside(inside))


def _rm(computer: Computer, shell: Shell, arguments: list[str]) -> int:
    given, paths = options(arguments, "rRfvid", long=("recursive", "force", "one-file-system"),
                           program_name="rm")  # fmt: skip
    recursive = bool({"r", "R", "recursive"} & set(given))
    forced = "f" in given or "force" in given
    status = 0
    for path in paths:
        whole = computer.absolute(path)
        seen = computer.stat(whole, follow=False)
        if seen is None:
            if not forced:
                say(shell, f"rm: cannot remove '{path}': No such file or directory\n")
                status = 1
            continue
        if seen.is_dir and not recursive:
            if "d" in given:
                status |= each(computer, shell, [path], lambda one: remove_folder(computer, one),
                               "rm: cannot remove '{}'")  # fmt: skip
                continue
            say(shell, f"rm: cannot remove '{path}': Is a directory\n")
            status = 1
            continue
        if whole == "/":
            say(shell, "rm: it is dangerous to operate recursively on '/'\n"
                       "rm: use --no-preserve-root to override this failsafe\n")  # fmt: skip
            status = 1
            continue
        status |= _remove(computer, shell, path, whole, seen)
    return status


def _remove(computer: Computer, shell: Shell, told: str, path: str, seen: Stat) -> int:
    if seen.is_dir:
        status = 0
        for name in computer.listdir(path):
            inner = computer.stat(f"{path}/{name}", follow=False)
            if inner is not None:
                status |= _remove(
                    computer, shell, f"{told.rstrip('/')}/{name}", f"{path}/{name}", inner
                )
        if status:
            return status
    remove = remove_folder if seen.is_dir else unlink
    return each(computer, shell, [told], lambda _: remove(computer, path), "rm: cannot remove '{}'")


def _unlink(computer: Computer, shell: Shell, arguments: list[str]) -> int:
    return each(computer, shell, arguments, lambda path: unlink(computer, path),
                "unlink: cannot unlink '{}'")  # fmt: skip


def _link(computer: Computer, shell: Shell, arguments: list[str]) -> int:
    if len(arguments) != 2:
        if not arguments:
            return no_operand(shell, "link")
        raise UnknownError("link: say a file and a new name")
    source, path = arguments
    return each(computer, shell, [path],
                lambda one: hard_link(computer, computer.absolute(source), one),
                f"link: cannot create link '{{}}' to '{source}'")  # fmt: skip


def _ln(computer: Computer, shell: Shell, arguments: list[str]) -> int:
    given, paths = options(arguments, "sfnTvrP", long=("symbolic", "force"), program_name="ln")
    symbolic, forced = "s" in given or "symbolic" in given, "f" in given or "force" in given
    if not paths:
        return no_operand(shell, "ln", "file ")
    if len(paths) == 1:
        paths = [paths[0], posixpath.basename(paths[0])]
    *sources, target = paths
    whole = computer.absolute(target)
    seen = computer.stat(whole, follow="n" not in given)
    into = seen is not None and seen.is_dir and "T" not in given
    status = 0
    for source in sources:
        name = f"{whole.rstrip('/')}/{posixpath.basename(source.rstrip('/'))}" if into else whole
        shown = f"{target.rstrip('/')}/{posixpath.basename(source)}" if into else target
        try:
            if forced and computer.stat(name, follow=False) is not None:
                unlink(computer, name)
            if symbolic:
                symlink(computer, source, name)
            else:
                hard_link(computer, computer.absolute(source), name)
        except OSError as error:
            kind = "symbolic" if symbolic else "hard"
            if error.errno == errno.ENOENT and not symbolic and computer.stat(
                computer.absolute(source), follow=False) is None:  # fmt: skip
                say(shell, f"ln: failed to access '{source}': {reason(error)}\n")
            elif error.errno == errno.EEXIST or symbolic:
                say(shell, f"ln: failed to create {kind} link '{shown}': {reason(error)}\n")
            else:
                say(
                    shell,
                    f"ln: failed to create {kind} link '{shown}' => '{source}': {reason(error)}\n",
                )
            status = 1
    return status


def symlink(computer: Computer, target: str, path: str) -> None:
    """Make a symbolic link."""
    found = computer.place(path)
    if found is None:
        computer.tree.make(path, stat.S_IFLNK | 0o777, target=target, mtime=computer.time_ns())
        return
    mounted, inside = found
    mounted.may_write(path)
    with computer.timed("symlink"):
        mounted.fs.symlink(target, mounted.inside(inside))


def hard_link(computer: Computer, source: str, path: str) -> None:
    """Give a file another name."""
    first, second = computer.place(source), computer.place(path)
    if first is None and second is None:
        node = computer.tree.find(source, follow=False)
        folder, name = computer.tree.parent(path)
        if name in folder.names:
            raise fail(errno.EEXIST, path)
        folder.names[name] = node
        node.nlink += 1
        return
    if first is None or second is None or first[0] is not second[0]:
        raise fail(errno.EXDEV, path)
    first[0].may_write(path)
    with computer.timed("link"):
        first[0].fs.link(first[0].inside(first[1]), second[0].inside(second[1]))


def _mv(computer: Computer, shell: Shell, arguments: list[str]) -> int:
    given, paths = options(arguments, "fTnvu", "t", long=("exchange", "no-target-directory"),
                           program_name="mv")  # fmt: skip
    if "t" in given:
        paths = [*paths, given["t"]]
    if len(paths) < 2:
        return no_operand(shell, "mv", "file ", "".join(paths))
    *sources, target = paths
    whole = computer.absolute(target)
    seen = computer.stat(whole)
    exact = "T" in given or "no-target-directory" in given or "exchange" in given
    into = seen is not None and seen.is_dir and not exact
    status = 0
    for source in sources:
        name = f"{whole.rstrip('/')}/{posixpath.basename(source.rstrip('/'))}" if into else whole
        shown = f"{target.rstrip('/')}/{posixpath.basename(source.rstrip('/'))}" if into else target
        if refused := _no_move(computer, source, name, shown):
            say(shell, f"mv: {refused}\n")
            status = 1
            continue
        if "n" in given and computer.stat(name, follow=False) is not None:
            continue
        try:
            rename(
                computer, computer.absolute(source).rstrip("/"), name, exchange="exchange" in given
            )
        except OSError as error:
            say(shell, f"mv: cannot move '{source}' to '{shown}': {reason(error)}\n")
            status = 1
    return status


def _no_move(computer: Computer, source: str, name: str, shown: str) -> str:
    """Say why mv does not even try."""
    first = computer.absolute(source).rstrip("/") or "/"
    seen, there = (computer.stat(one, follow=False) for one in (first, name))
    if seen is None:
        return f"cannot stat '{source}': No such file or directory"
    if first == name.rstrip("/"):
        return f"'{source}' and '{shown}' are the same file"
    if there is not None and seen.is_dir != there.is_dir:
        if seen.is_dir:
            return f"cannot overwrite non-directory '{shown}' with directory '{source}'"
        return f"cannot overwrite directory '{shown}' with non-directory"
    if seen.is_dir and name.startswith(first + "/"):
        return f"cannot move '{source}' to a subdirectory of itself, '{shown}'"
    return ""


def rename(computer: Computer, source: str, path: str, *, exchange: bool = False) -> None:
    """Rename a file."""
    first, second = computer.place(source), computer.place(path)
    if first is None and second is None:
        node = computer.tree.find(source, follow=False)
        before, old = computer.tree.parent(source)
        after, new = computer.tree.parent(path)
        inner = after.names.get(new)
        if inner is not None and stat.S_ISDIR(inner.mode) and inner.names:
            raise fail(errno.ENOTEMPTY, path)
        del before.names[old]
        after.names[new] = node
        return
    if first is None or second is None or first[0] is not second[0]:
        _move(computer, source, path)
        return
    first[0].may_write(path)
    try:
        with computer.timed("rename"):
            first[0].fs.rename(first[0].inside(first[1]), second[0].inside(second[1]),
                               2 if exchange else 0)  # fmt: skip
    except OSError as error:
        if error.errno != errno.EXDEV or exchange:
            raise
        _move(computer, source, path)  # another subvolume


def _move(computer: Computer, source: str, path: str) -> None:
    """Copy a file to another filesystem, and remove it."""
    seen = computer.stat(source, follow=False)
    if seen is None:
        raise fail(errno.ENOENT, source)
    if not seen.is_file:
        raise UnknownError("mv: only regular files are moved to another filesystem")
    computer.write(path, computer.read(source))
    unlink(computer, source)


def read_link(computer: Computer, path: str) -> str:
    """Return where a symbolic link leads."""
    found = computer.place(path)
    if found is not None:
        return found[0].read_link(found[1])
    node = computer.tree.find(path, follow=False)
    if not stat.S_ISLNK(node.mode):
        raise fail(errno.EINVAL, path)
    return node.target


def _mktemp(computer: Computer, shell: Shell, arguments: list[str]) -> int:
    given, words = options(arguments, "dqut", "p", long=("tmpdir=", "directory"),
                           program_name="mktemp")  # fmt: skip
    form = words[0] if words else "tmp.XXXXXXXXXX"
    folder = given.get("p", given.get("tmpdir", "/tmp" if not words or "t" in given else ""))
    for number in range(1 << 20):
        last = re.search("X{3,}(?!.*X{3,})", form)
        name = (
            form
            if last is None
            else (f"{form[: last.start()]}{number:0{len(last[0])}d}{form[last.end() :]}")
        )
        path = computer.absolute(posixpath.join(folder, name) if folder else name)
        if computer.stat(path, follow=False) is None:
            break
    if "u" in given:
        pass
    elif "d" in given or "directory" in given:
        make_folder(computer, path, 0o700)
    else:
        computer.write(path)
    shell.write(path + "\n")
    return 0


def _readlink(computer: Computer, shell: Shell, arguments: list[str]) -> int:
    given, paths = options(arguments, "fenmq", program_name="readlink")
    for path in paths:
        whole = computer.absolute(path)
        try:
            if {"f", "e", "m"} & set(given):
                shell.write(_real(computer, whole) + "\n")
            else:
                shell.write(read_link(computer, whole) + ("" if "n" in given else "\n"))
        except OSError:
            return 1
    return 0


def _real(computer: Computer, path: str) -> str:
    for _ in range(40):
        seen = computer.stat(path, follow=False)
        if seen is None or not seen.is_link:
            break
        path = computer.absolute(posixpath.join(posixpath.dirname(path), read_link(computer, path)))
    return path.rstrip("/") or "/"


_KINDS: Final = {"p": stat.S_IFIFO, "c": stat.S_IFCHR, "u": stat.S_IFCHR, "b": stat.S_IFBLK}


def _mknod(computer: Computer, shell: Shell, arguments: list[str]) -> int:
    given, words = options(arguments, "", "m", long=("mode=",), program_name="mknod")
    path, kind, *numbers = [*words, "", ""][: max(2, len(words))]
    if kind not in _KINDS or len(numbers) != (0 if kind == "p" else 2):
        raise UnknownError(f"mknod {' '.join(words)}: only NAME p, and NAME b|c MAJOR MINOR")
    if not all(re.fullmatch(r"\d+|0x[0-9a-fA-F]+", one) for one in numbers):
        raise UnknownError(f"mknod {' '.join(words)}: numbers of a device are digits")
    device = os.makedev(int(numbers[0], 0), int(numbers[1], 0)) if numbers else 0
    return _special(computer, shell, given, [path], _KINDS[kind], device, "mknod: {}")


def _mkfifo(computer: Computer, shell: Shell, arguments: list[str]) -> int:
    given, paths = options(arguments, "", "m", long=("mode=",), program_name="mkfifo")
    return _special(computer, shell, given, paths, stat.S_IFIFO, 0,
                    "mkfifo: cannot create fifo '{}'")  # fmt: skip


def _special(
    computer: Computer, shell: Shell, given: dict[str, str], paths: list[str], kind: int,
    device: int, told: str,
) -> int:  # fmt: skip
    mode = given.get("m", given.get("mode"))
    bits = kind | (0o666 if mode is None else _octal(mode))

    def make(whole: str) -> None:
        found = computer.place(whole)
        if found is None:
            computer.tree.make(whole, bits & ~computer.umask)
        else:
            found[0].may_write(whole)
            found[0].fs.mknod(found[0].inside(found[1]), bits, device)

    with nullcontext() if mode is None else _no_umask(computer):
        return each(computer, shell, paths, make, told)


PROGRAMS: Final[dict[str, Program]] = {
    "mkdir": _mkdir, "rmdir": _rmdir, "rm": _rm, "unlink": _unlink, "link": _link, "ln": _ln,
    "mv": _mv, "mktemp": _mktemp, "readlink": _readlink, "mknod": _mknod, "mkfifo": _mkfifo,
    "realpath": lambda computer, shell, arguments: _readlink(
        computer, shell, ["-f", *[one for one in arguments if one != "-e"]]),
}  # fmt: skip
