# SPDX-License-Identifier: GPL-2.0-only
"""Extended attributes: setfattr, getfattr, attr."""

from __future__ import annotations

import base64
import errno
import re
from typing import TYPE_CHECKING, Final

from btrfs_model.mount.names.xattr import all_xattrs
from btrfs_model.scripts.files import fail
from btrfs_model.scripts.mounted import Mounted
from btrfs_model.scripts.program import Program, options, reason, say, without_root
from btrfs_model.scripts.programs.find.walk import walk
from btrfs_model.shell.state import UnknownError

if TYPE_CHECKING:
    from btrfs_model.scripts.computer import Computer
    from btrfs_model.shell.state import Shell


def on_mount(computer: Computer, path: str) -> tuple[Mounted, str]:
    """Return the mount of a file, and its path there; OSError where it is in memory."""
    found = computer.place(computer.absolute(path))
    if found is None:
        raise fail(errno.EOPNOTSUPP, path)
    return found[0], found[0].inside(found[1])


_SETFATTR: Final = """\
Usage: setfattr {-n name} [-v value] [-h] file...
       setfattr {-x name} [-h] file...
Try `setfattr --help' for more information.
"""
_GETFATTR: Final = """\
Usage: getfattr [-hRLP] [-n name|-d] [-e en] [-m pattern] path...
Try `getfattr --help' for more information.
"""


def _setfattr(computer: Computer, shell: Shell, arguments: list[str]) -> int:
    given, paths = options(arguments, "h", "nvx", long=("name=", "value=", "remove=",
                           "no-dereference"), program_name="setfattr")  # fmt: skip
    removed = given.get("x", given.get("remove"))
    name = given.get("n", given.get("name", ""))
    follow = not {"h", "no-dereference"} & set(given)
    if not paths or (removed is None) == (not name):
        say(shell, _SETFATTR)
        return 2
    try:
        value = _value(given.get("v", given.get("value", "")))
    except ValueError:
        say(shell, "bad input encoding\n")
        return 1

    def change(path: str) -> None:
        if computer.stat(path, follow=follow) is None:
            raise fail(errno.ENOENT, path)
        if computer.place(path) is None:
            node = computer.tree.find(path, follow=follow)
            if removed is None:
                node.xattrs[name] = value
            elif node.xattrs.pop(removed, None) is None:
                raise fail(errno.ENODATA, path)
            return
        mounted, inside = on_mount(computer, path)
        mounted.may_write(path)
        with computer.timed("setxattr"):
            if removed is not None:
                mounted.fs.removexattr(inside, removed, follow=follow)
            else:
                mounted.fs.setxattr(inside, name, value, follow=follow)

    status = 0
    for path in paths:
        try:
            change(computer.absolute(path))
        except OSError as error:
            said = "No such attribute" if error.errno == errno.ENODATA else reason(error)
            say(shell, f"setfattr: {path}: {said}\n")
            status = 1
    return status


def _value(text: str) -> bytes:
    """Return the bytes of a value; ValueError where it says none."""
    if text[:2] in ("0x", "0X"):
        return bytes.fromhex(text[2:])
    if text[:2] in ("0s", "0S"):
        return base64.b64decode(text[2:], validate=True)
    data = text.encode("utf-8", "surrogateescape")
    if len(data) > 1 and data[:1] == data[-1:] == b'"':
        return re.sub(rb"\\([0-7]{3}|.)", lambda found: bytes([int(found[1], 8)])
                      if len(found[1]) == 3 else found[1], data[1:-1])  # fmt: skip
    return data


def _getfattr(computer: Computer, shell: Shell, arguments: list[str]) -> int:
    given, paths = options(arguments, "dhR", "nme", long=("only-values", "absolute-names", "name=",
                           "dump", "match=", "encoding=", "no-dereference", "recursive"),
                           program_name="getfattr")  # fmt: skip
    given = {_LETTERS_OF.get(one, one): value for one, value in given.items()}
    if not paths or given.get("e", "hex") not in ("hex", "text", "base64"):
        say(shell, _GETFATTR)
        return 2
    status = 0
    for path in paths:
        seen = computer.stat(path, follow="h" not in given)
        if seen is None:
            say(shell, f"getfattr: {path}: No such file or directory\n")
            status = 1
            continue
        below = [one for one, _, _ in walk(computer, path, seen, 0, 1 << 30, False)]
        for one in below if "R" in given else [path]:
            status |= _show_xattrs(computer, shell, one, given)
    return status


_LETTERS_OF: Final = {"name": "n", "dump": "d", "match": "m", "encoding": "e", "recursive": "R",
                      "no-dereference": "h"}  # fmt: skip


def _show_xattrs(computer: Computer, shell: Shell, path: str, given: dict[str, str]) -> int:
    found = file_xattrs(computer, path, follow="h" not in given)
    wanted = given.get("n")
    if wanted is not None:
        if wanted not in found:
            say(shell, f"{path}: {wanted}: No such attribute\n")
            return 1
        found = {wanted: found[wanted]}
    else:
        match = given.get("m", r"^user\.")
        found = {name: value for name, value in sorted(found.items())
                 if match == "-" or re.search(match, name)}  # fmt: skip
    if "only-values" in given:
        for value in found.values():
            shell.files[1].write(value)
        return 0
    if not found:
        return 0
    shown = path if "absolute-names" in given else without_root(path)
    if shown != path and path.startswith("/"):
        say(shell, "getfattr: Removing leading '/' from absolute path names\n")
    shell.write(f"# file: {shown}\n")
    for name, value in found.items():
        shell.write(name)
        if "d" in given or wanted is not None:
            shell.files[1].write(b"=" + _encoded(value, given.get("e", "")))
        shell.write("\n")
    shell.write("\n")
    return 0


def file_xattrs(computer: Computer, path: str, *, follow: bool) -> dict[str, bytes]:
    """Return the extended attributes of any file."""
    place = computer.place(computer.absolute(path))
    if place is None:
        return dict(computer.tree.find(computer.absolute(path), follow=follow).xattrs)
    return xattrs(*place, follow=follow)


def _encoded(value: bytes, encoding: str) -> bytes:
    """Write a value: as text by itself where at most an eighth of it cannot be printed."""
    text = value.removesuffix(b"\0")
    odd = sum(not 32 <= one < 127 for one in text)
    encoding = encoding or ("text" if len(text) >= 8 * odd else "base64")
    if encoding == "hex":
        return b"0x" + value.hex().encode()
    if encoding == "base64":
        return b"0s" + base64.b64encode(value)
    return b'"' + re.sub(rb'["\\]', rb"\\\g<0>", text).replace(b"\n", rb"\012").replace(
        b"\r", rb"\015").replace(b"\0", rb"\000") + b'"'  # fmt: skip


def _attr(computer: Computer, shell: Shell, arguments: list[str]) -> int:
    """attr: xattrs of users by the names that XFS gave them."""
    given, paths = options(arguments, "lqLRS", "sgrV", program_name="attr")
    if len(paths) != 1:
        raise UnknownError("attr: say one file")
    path = paths[0]
    mounted, inside = on_mount(computer, computer.absolute(path))
    quiet = "q" in given
    found = xattrs(mounted, computer.place(computer.absolute(path))[1])  # type: ignore[index]
    if "s" in given:
        value = given["V"].encode() if "V" in given else shell.files[0].read()
        mounted.may_write(path)
        mounted.fs.setxattr(inside, f"user.{given['s']}", value)
        if not quiet:
            told = value.decode("utf-8", "surrogateescape")
            shell.write(f'Attribute "{given["s"]}" set to a {len(value)} byte value for {path}:\n'
                        f"{told}\n")  # fmt: skip
        return 0
    if "l" in given:
        for name, value in sorted(found.items()):
            if name.startswith("user."):
                short = name.removeprefix("user.")
                shell.write(f"{short}\n" if quiet else f'Attribute "{short}" has a {len(value)} '
                            f"byte value for {path}\n")  # fmt: skip
        return 0
    name = given.get("g", given.get("r", ""))
    if f"user.{name}" not in found:
        say(shell, f'attr_{"get" if "g" in given else "remove"}: No data available\n'
            f'Could not {"get" if "g" in given else "remove"} "{name}" for {path}\n')  # fmt: skip
        return 1
    if "r" in given:
        mounted.may_write(path)
        mounted.fs.removexattr(inside, f"user.{name}")
        return 0
    value = found[f"user.{name}"]
    if not quiet:
        shell.write(f'Attribute "{name}" had a {len(value)} byte value for {path}:\n')
    shell.files[1].write(value + b"\n")
    return 0


def xattrs(mounted: Mounted, path: str, *, follow: bool = True) -> dict[str, bytes]:
    """Return the extended attributes of a file, as they are now."""
    found = all_xattrs(mounted.fs, mounted.inode(path, follow=follow))
    return {name.decode("utf-8", "surrogateescape"): value for name, value in found.items()}


PROGRAMS: Final[dict[str, Program]] = {
    "attr": _attr,
    "setfattr": _setfattr,
    "getfattr": _getfattr,
}
