# SPDX-License-Identifier: GPL-2.0-only
"""``btrfs inspect-internal``."""

from __future__ import annotations

import posixpath
from typing import TYPE_CHECKING, BinaryIO, Final, cast

from btrfs_model.backref.api import logical_ino
from btrfs_model.questions.dumptree.text import dump_tree_text
from btrfs_model.questions.dumptree.trees import tree_number
from btrfs_model.scripts.program import options, reason, say
from btrfs_model.scripts.programs.btrfs.common import Command, counted, decoded, image_on, on_mount
from btrfs_model.shell.state import UnknownError

if TYPE_CHECKING:
    from btrfs_model.scripts.computer import Computer
    from btrfs_model.scripts.mounted import Mounted
    from btrfs_model.shell.state import Shell


def _dump_tree(computer: Computer, shell: Shell, arguments: list[str]) -> int:
    given, paths = options(arguments, "eudrR", "tb",
                           long=("tree=", "noscan", "bfs", "dfs", "hide-names"),
                           program_name="btrfs inspect-internal dump-tree")  # fmt: skip
    counted("inspect-internal dump-tree", paths, 1, None)
    if {"e", "u", "d", "r", "R", "b"} & set(given):
        raise UnknownError("btrfs inspect-internal dump-tree: only -t is known")
    told = given.get("t", given.get("tree"))
    with image_on(computer, paths[-1]) as image:
        if image is None:
            say(shell, f"ERROR: unable to open {paths[-1]}\n")
            return 1
        shell.write("btrfs-progs v6.2 \n")
        # what it writes to takes bytes, and nothing else is asked of it
        out = cast("BinaryIO", shell.files[1])
        dump_tree_text(image, out, None if told is None else tree_number(told))
    return 0


def _rootid(computer: Computer, shell: Shell, arguments: list[str]) -> int:
    counted("inspect-internal rootid", arguments, 1, 1)
    mounted, inside = on_mount(computer, arguments[-1])
    shell.write(f"{mounted.fs.resolve(inside)[0]}\n")
    return 0


def _inode_resolve(computer: Computer, shell: Shell, arguments: list[str]) -> int:
    _, words = options(arguments, "v", program_name="btrfs inspect-internal inode-resolve")
    counted("inspect-internal inode-resolve", words, 2, 2)
    number, path = words
    mounted, inside = on_mount(computer, path)
    fs = mounted.fs
    fs.sync()
    root = fs.resolve(inside)[0]
    return _ino_paths(mounted, shell, root, int(number), path)


def _ino_paths(mounted: Mounted, shell: Shell, root: int, inum: int, top: str) -> int:
    """Print the paths of an inode in a subvolume, behind that of a directory."""
    try:
        paths = mounted.fs.subvolume(root).paths_of(inum)
    except OSError as error:
        say(shell, f"ERROR: ino paths ioctl: {reason(error)}\n")
        return 1
    for found in paths:
        shell.write(posixpath.join(top, decoded(found)) + "\n")
    return 0


def _logical_resolve(computer: Computer, shell: Shell, arguments: list[str]) -> int:
    given, words = options(arguments, "Pvo", "s",
                           program_name="btrfs inspect-internal logical-resolve")  # fmt: skip
    counted("inspect-internal logical-resolve", words, 2, 2)
    logical, path = words
    mounted, inside = on_mount(computer, path)
    fs = mounted.fs
    fs.sync()
    found = logical_ino(fs, int(logical), ignore_offset="o" in given)
    status = 0
    for inum, offset, root in zip(*(found[one].tolist() for one in ("inum", "offset", "root")),
                                  strict=True):  # fmt: skip
        if "P" in given:
            shell.write(f"inode {inum} offset {offset} root {root}\n")
            continue
        name = decoded(fs.subvolume(root).path)
        mounts = [one for one in computer.mounts.values() if one.device is mounted.device]
        where = next((one.where for one in mounts if name and one.top == name), "")
        if name and not where:
            shell.write(f"inode {inum} subvol {name} could not be accessed: not mounted\n")
        else:
            seen = root if name else fs.resolve(inside)[0]
            status |= _ino_paths(mounted, shell, seen, inum, where or path)
    return status


COMMANDS: Final[dict[str, Command]] = {
    "inspect-internal dump-tree": _dump_tree, "inspect-internal rootid": _rootid,
    "inspect-internal inode-resolve": _inode_resolve,
    "inspect-internal logical-resolve": _logical_resolve,
}  # fmt: skip
