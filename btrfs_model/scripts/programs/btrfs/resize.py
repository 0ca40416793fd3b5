# SPDX-License-Identifier: GPL-2.0-only
"""``btrfs filesystem resize`` and ``btrfs inspect-internal min-dev-size``."""

from __future__ import annotations

import errno
import os
import re
from typing import TYPE_CHECKING, Final

from btrfs_model.base.errors import UnsupportedError
from btrfs_model.mount.space.block_group import dev_extents
from btrfs_model.ondisk.keys import U64_MAX
from btrfs_model.ondisk.superblock import SUPER_OFFSETS
from btrfs_model.scripts.program import options, reason, say
from btrfs_model.scripts.programs.btrfs.common import Command, counted, opened, pretty
from btrfs_model.shell.state import UnknownError

if TYPE_CHECKING:
    from btrfs_model.scripts.computer import Computer
    from btrfs_model.scripts.mounted import Mounted
    from btrfs_model.shell.state import Shell

_MIB: Final = 1 << 20
_SECTOR: Final = 4096
_SYSTEM_CHUNK: Final = 32 * _MIB
# BTRFS_VOL_NAME_MAX
_LONGEST: Final = 255
_SHIFTS: Final = {"": 0, "b": 0, "k": 10, "m": 20, "g": 30, "t": 40, "p": 50, "e": 60}
_NO_FOLDER: Final = """\
ERROR: resize works on mounted filesystems and accepts only
directories as argument. Passing file containing a btrfs image
would resize the underlying filesystem instead of the image.

"""


class _RefusedError(Exception):
    """What ``btrfs`` itself refuses; the text is what it says."""


def _resize(computer: Computer, shell: Shell, arguments: list[str]) -> int:
    given = [one for one in arguments if one != "--enqueue"]
    if given[:1] == ["--"]:
        del given[0]
    counted("filesystem resize", given, 2, 2)
    amount, path = given
    if not 0 < len(amount.encode("utf-8", "surrogateescape")) < _LONGEST:
        say(shell, f"ERROR: resize value too long ({amount})\n")
        return 1
    mounted = _mount_of(computer, shell, path, _NO_FOLDER)
    if mounted is None:
        return 1
    try:
        lines, told = _announced(mounted, amount)
    except _RefusedError as refused:
        say(shell, f"ERROR: {refused}\n")
        return 1
    said = "".join(f"ERROR: {line}\n" for line in lines)
    try:
        if mounted.is_read_only:
            raise OSError(errno.EROFS, os.strerror(errno.EROFS))
        mounted.fs.resize(amount)
    except OSError as error:
        why = "no enough free space" if error.errno == errno.EFBIG else reason(error)
        say(shell, f"{said}ERROR: unable to resize '{path}': {why}\n")
        shell.write(told)
        return 1
    except UnsupportedError as error:
        raise UnknownError(f"btrfs filesystem resize: {error}") from None
    say(shell, said)
    shell.write(told)
    return 0


def _mount_of(computer: Computer, shell: Shell, path: str, more: str) -> Mounted | None:
    """Return the mount that a directory is in; None, with what is said of it, where it is none."""
    seen = computer.stat(path)
    if seen is not None and not seen.is_dir:
        say(shell, f"ERROR: not a directory: {path}\n{more}")
        return None
    return opened(computer, shell, path)


def _announced(mounted: Mounted, amount: str) -> tuple[list[str], str]:
    """Return errors that do not stop it, and what is said of the request.

    (``check_resize_args()`` of btrfs-progs 6.2.)
    """
    before, colon, text = amount.partition(":")
    text = text if colon else before
    number = re.match(r"\s*[+-]?\d+", before, re.ASCII) if colon else None
    devid = int(number[0] if number else 0) if colon else 1
    if "cancel" in (amount, text) and devid == 1:
        return [], "Request to cancel resize\n"
    if devid != 1:
        return [f"cannot find devid: {devid}"], ""
    old = mounted.fs.image.superblock.dev_item.total_bytes
    if text == "max":
        told = "max"
    else:
        sign, text = (text[0], text[1:]) if text[:1] in ("+", "-") else ("", text)
        size = _parsed(text)
        if not size:
            return [f"failed to parse size {text}"], ""
        if sign == "-" and size > old:
            return [f"current size is {pretty(old, {})} which is smaller than "
                    f"{pretty(size, {})}"], ""  # fmt: skip
        if sign == "+" and size > U64_MAX - old:
            return [f"increasing {pretty(size, {})} is out of range"], ""
        new = old + size if sign == "+" else old - size if sign == "-" else size
        told = pretty(new - new % _SECTOR, {})
    return [], f"Resize device id 1 ({mounted.source}) from {pretty(old, {})} to {told}\n"


def _parsed(text: str) -> int:
    """Return a size (``parse_size_from_string()`` of btrfs-progs 6.2)."""
    found = re.match(r"\s*\+?(\d+)(.?)(.?)", text, re.ASCII | re.DOTALL)
    if not found:
        raise _RefusedError(f"size value '{text}' is invalid")
    number, suffix, wrong = found.groups()
    if int(number) > U64_MAX:
        raise _RefusedError(f"size value '{text}' is too large for u64")
    if wrong:
        raise _RefusedError(f"illegal suffix contains character '{wrong}' in wrong position")
    if suffix.lower() not in _SHIFTS:
        raise _RefusedError(f"unknown size descriptor '{suffix.lower()}'")
    size = int(number) << _SHIFTS[suffix.lower()]
    if size > U64_MAX:
        raise _RefusedError(f"size value '{text}' is too large for u64")
    return size


# --------------------------------------------------------------------------------- min-dev-size --


def _min_dev_size(computer: Computer, shell: Shell, arguments: list[str]) -> int:
    given, paths = options(arguments, long=("id=",),
                           program_name="btrfs inspect-internal min-dev-size")  # fmt: skip
    number = given.get("id", "1")
    if not re.fullmatch(r"\d+", number, re.ASCII):
        say(shell, f"ERROR: {number} is not a valid numeric value\n")
        return 1
    counted("inspect-internal min-dev-size", paths, 1, 1)
    mounted = _mount_of(computer, shell, paths[0], "")
    if mounted is None:
        return 1
    size = _least(dev_extents(mounted.fs) if int(number) == 1 else [])
    shell.write(f"{size} bytes ({pretty(size, {})})\n")
    return 0


def _least(extents: list[tuple[int, int]]) -> int:
    """Return the size that a device with these extents may shrink to, as btrfs-progs guess it.

    What ends behind the sum of all is moved into the first hole that is large enough
    (``adjust_dev_min_size()``).
    """
    least = _MIB + sum(length for _, length in extents)
    ends = [start + length for start, length in extents]
    holes = [[end, start] for end, (start, _) in zip(ends, extents[1:], strict=False)
             if start != end]  # fmt: skip
    largest = 0
    for start, length in reversed(extents):
        if start + length - 1 <= least:
            break
        hole = next((one for one in holes if one[1] - one[0] >= length), None)
        if hole is None:
            least = start + length
            break
        if any(hole[0] <= place < hole[0] + length for place in SUPER_OFFSETS):
            least += length
        hole[0] += length
        largest = max(largest, length)
    return least + (largest + _SYSTEM_CHUNK if largest else 0)


COMMANDS: Final[dict[str, Command]] = {
    "filesystem resize": _resize, "inspect-internal min-dev-size": _min_dev_size,
}  # fmt: skip
