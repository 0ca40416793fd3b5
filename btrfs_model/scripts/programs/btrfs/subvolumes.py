# SPDX-License-Identifier: GPL-2.0-only
"""``btrfs subvolume``."""

from __future__ import annotations

import errno
import posixpath
from typing import TYPE_CHECKING, Final

from btrfs_model.scripts.files import fail
from btrfs_model.scripts.program import options, reason, say
from btrfs_model.scripts.programs.btrfs.common import (
    Command,
    checked_subvolume,
    counted,
    on_mount,
)

if TYPE_CHECKING:
    from btrfs_model.scripts.computer import Computer
    from btrfs_model.shell.state import Shell


def _create(computer: Computer, shell: Shell, arguments: list[str]) -> int:
    given, paths = options(arguments, "qp", "i", program_name="btrfs subvolume create")
    status = 0
    for path in paths:
        folder, name = posixpath.split(path.rstrip("/"))
        if computer.stat(path) is not None:
            say(shell, f"ERROR: target path already exists: {path}\n")
            status = 1
            continue
        try:
            mounted, inside = on_mount(computer, path)
            mounted.may_write(path)
            with computer.timed("subvolume create"):
                mounted.fs.create_subvolume(inside, _groups(given))
        except OSError as error:
            if error.errno == errno.ENOENT:
                say(shell, f"ERROR: cannot access '{folder}': {reason(error)}\n")
            else:
                say(shell, f"ERROR: cannot create subvolume: {reason(error)}\n")
            status = 1
            continue
        if "q" not in given:
            shell.write(f"Create subvolume '{folder or '.'}/{name}'\n")
    return status


def _groups(given: dict[str, str]) -> list[str] | None:
    return [given["i"]] if "i" in given else None


def _snapshot(computer: Computer, shell: Shell, arguments: list[str]) -> int:
    given, paths = options(arguments, "qr", "i", program_name="btrfs subvolume snapshot")
    counted("subvolume snapshot", paths, 2, 2)
    source, target = paths
    seen = computer.stat(target)
    if seen is not None and seen.is_dir:
        target = f"{target.rstrip('/')}/{posixpath.basename(computer.absolute(source).rstrip('/'))}"
    folder, name = posixpath.split(target.rstrip("/"))
    if not checked_subvolume(computer, shell, source):
        return 1
    if computer.stat(folder or ".") is None:
        say(shell, f"ERROR: cannot access '{folder}': No such file or directory\n")
        return 1
    status = 0
    try:
        mounted, inside = on_mount(computer, source)
        other, path = on_mount(computer, target)
        if other.fs is not mounted.fs:
            raise fail(errno.EXDEV, target)
        other.may_write(target)
        with computer.timed("subvolume snapshot"):
            mounted.fs.snapshot(inside, path, "r" in given, _groups(given))
    except OSError as error:
        status = 1
        say(shell, f"ERROR: cannot snapshot '{source}': {reason(error)}\n")
    if "q" not in given:
        # that it says before it tries; a buffer keeps it up to its end
        kind = "a readonly snapshot" if "r" in given else "a snapshot"
        shell.write(f"Create {kind} of '{source}' in '{folder or '.'}/{name}'\n")
    return status


def _delete(computer: Computer, shell: Shell, arguments: list[str]) -> int:
    given, paths = options(arguments, "qcCvR", "i", long=("commit-after", "commit-each"),
                           program_name="btrfs subvolume delete")  # fmt: skip
    counted("subvolume delete", paths, 1, None)
    status = 0
    for path in paths:
        folder, name = posixpath.split(computer.absolute(path).rstrip("/"))
        if not checked_subvolume(computer, shell, path):
            status = 1
            continue
        try:
            mounted, inside = on_mount(computer, path)
            mounted.may_write(path)
            number = mounted.fs.resolve(inside)[0]
            if number == mounted.fs.default_subvolume():
                say(shell, f"WARNING: not deleting default subvolume id {number} "
                           f"'{folder}/{name}'\n")  # fmt: skip
                status = 1
                continue
            with computer.timed("subvolume delete"):
                mounted.fs.delete_subvolume(inside)
                if {"c", "C", "commit-after", "commit-each"} & set(given):
                    mounted.fs.sync()
        except OSError as error:
            say(shell, f"ERROR: Could not destroy subvolume/snapshot: {reason(error)}\n")
            status = 1
            continue
        if "q" not in given:
            kind = "commit" if {"c", "C"} & set(given) else "no-commit"
            shell.write(f"Delete subvolume ({kind}): '{folder}/{name}'\n")
    return status


def _subvolume_sync(computer: Computer, shell: Shell, arguments: list[str]) -> int:
    del shell
    counted("subvolume sync", arguments, 1, None)
    mounted, _ = on_mount(computer, arguments[0])
    mounted.fs.clean_subvolumes()
    return 0


COMMANDS: Final[dict[str, Command]] = {
    "subvolume create": _create, "subvolume snapshot": _snapshot, "subvolume delete": _delete,
    "subvolume sync": _subvolume_sync,
}  # fmt: skip
