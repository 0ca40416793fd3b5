# SPDX-License-Identifier: GPL-2.0-only
"""``btrfs check``."""

from __future__ import annotations

import stat
from typing import TYPE_CHECKING, Final
from uuid import UUID

from btrfs_model.ondisk.keys import ObjectId
from btrfs_model.questions.check import check
from btrfs_model.questions.check.summary import check_summary
from btrfs_model.scripts.program import options, say
from btrfs_model.scripts.programs.btrfs.common import Command, image_on
from btrfs_model.shell.state import UnknownError
from btrfs_model.volume.filesystem import Filesystem

if TYPE_CHECKING:
    from btrfs_model.scripts.computer import Computer
    from btrfs_model.shell.state import Shell
    from btrfs_model.volume.image import Image

_NO_QUOTAS: Final = " skipped (not enabled on this FS)"
_WITH_ROOTS: Final = " done with fs roots in lowmem mode, skipping"


def _check(computer: Computer, shell: Shell, arguments: list[str]) -> int:
    given, paths = options(arguments, "Q", "", long=("readonly", "force", "check-data-csum",
                           "qgroup-report", "mode=", "repair"),
                           program_name="btrfs check")  # fmt: skip
    if {"Q", "qgroup-report"} & set(given):
        raise UnknownError("btrfs check: --qgroup-report is not known")
    if given.get("mode", "original") not in ("original", "lowmem"):
        raise UnknownError(f"btrfs check: --mode={given['mode']} is not known")
    if len(paths) != 1:
        raise UnknownError("btrfs check: say one device")
    path = paths[0]
    if "repair" in given:
        if "force" not in given:
            raise UnknownError("btrfs check: --repair waits for an answer: say --force")
        shell.write("enabling repair mode\n")
    shell.write("Opening filesystem to check...\n")
    seen = computer.stat(path)
    if seen is None:
        say(shell, f"ERROR: mount check: cannot open {path}: No such file or directory\n"
                   "ERROR: could not check mount status: No such file or directory\n")  # fmt: skip
        return 1
    if not (stat.S_ISBLK(seen.mode) or seen.is_file):
        say(shell, f"ERROR: not a regular file or block device: {path}\n"
                   "ERROR: cannot open file system\n")  # fmt: skip
        return 1
    if computer.mounted_at(path) is not None:
        if "force" not in given:
            say(shell, f"ERROR: {path} is currently mounted, use --force if you really intend to "
                       "check the filesystem\n")  # fmt: skip
            return 1
        say(shell, "WARNING: filesystem mounted, continuing because of --force\n")
    with image_on(computer, path) as image:
        if image is None:
            say(shell, f"No valid Btrfs found on {path}\nERROR: cannot open file system\n")
            return 1
        return _checked(shell, image, path, given)


def _checked(shell: Shell, image: Image, path: str, given: dict[str, str]) -> int:
    fsid = UUID(bytes=image.superblock.fsid)
    shell.write(f"Checking filesystem on {path}\nUUID: {fsid}\n")
    verifies = "check-data-csum" in given
    findings = check(image, verify_data=verifies)
    if findings and "repair" in given:
        raise UnknownError("btrfs check: --repair: there is something to mend, which is not known")
    has_quotas = ObjectId.QUOTA_TREE in Filesystem(image).trees
    has_tree = image.superblock.has_compat_ro("FREE_SPACE_TREE")
    lowmem = given.get("mode") == "lowmem"
    for number, step in enumerate((
        "root items", "extents", "free space tree" if has_tree else "free space cache",
        "fs roots", "csums against data" if verifies else
        "only csums items (without verifying data)", "root refs" + _WITH_ROOTS * lowmem,
        "quota groups" + _NO_QUOTAS * (not has_quotas),
    ), 1):  # fmt: skip
        say(shell, f"[{number}/7] checking {step}\n")
        if number == 1 and "repair" in given:
            say(shell, "Fixed 0 roots.\n")
        if number == 2 and "repair" in given:
            shell.write("No device size related problem found\n")
    for one in findings:
        say(shell, f"{one}\n")
    found = check_summary(image)
    shell.write(
        f"found {found.used} bytes used, {'error(s)' if findings else 'no error'} found\n"
        f"total csum bytes: {found.csum}\n"
        f"total tree bytes: {found.trees}\n"
        f"total fs tree bytes: {found.fs_trees}\n"
        f"total extent tree bytes: {found.extent_tree}\n"
        f"btree space waste bytes: {found.waste}\n"
        f"file data blocks allocated: {found.allocated}\n"
        f" referenced {found.referenced}\n"
    )
    return int(bool(findings))


COMMANDS: Final[dict[str, Command]] = {"check": _check}
