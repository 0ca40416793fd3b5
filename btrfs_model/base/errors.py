# SPDX-License-Identifier: GPL-2.0-only
"""Everything that can go wrong with an image or a stream, as exceptions that say where.

The C kernels report a fault as numbers: a code and a place (tree, block, slot, byte). Here the
numbers become one line that names the file.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from btrfs_model.base.codes import EUCLEAN, Code
from btrfs_model.base.nearest import did_you_mean


class BtrfsModelError(Exception):
    """Base class of the errors of this package; its text is one line.

    It pickles and copies as it is, whatever its class wants to be made of: what fails in another
    process arrives here.
    """

    def __reduce__(self) -> tuple[Any, ...]:
        reduced = super().__reduce__()
        assert not isinstance(reduced, str)
        return _made_again, (type(self), reduced[1]), *reduced[2:]


def _made_again(kind: type[BtrfsModelError], args: tuple[Any, ...]) -> BtrfsModelError:
    """Return an error as it was; how its class makes one says what it was made of, no more."""
    error = kind.__new__(kind, *args)
    builtin: Any = next(base for base in kind.__mro__ if base.__module__ == "builtins")
    builtin.__init__(error, *args)
    return error


class NotBuiltError(BtrfsModelError, ImportError):
    """The C kernels were not compiled, or of other sources; what does without can be used."""


class UnsupportedError(BtrfsModelError):
    """A valid filesystem that the model does not handle, by the name of the feature."""


class _MissingError(BtrfsModelError, FileNotFoundError):
    """Something that is not there."""

    errno = errno.ENOENT


class SubvolumeNotFoundError(_MissingError):
    """No subvolume of that path or id, or no tree of that id."""


class NoSuchFileError(_MissingError):
    """No file of that path or inode number in a subvolume."""


class NotCommittedError(_MissingError):
    """A file or subvolume that only the running transaction has; readers see the last commit."""


class UnknownBehaviourError(BtrfsModelError, ValueError):
    """A preset or toggle that is not in the table of :mod:`btrfs_model.patches`."""


class UnknownCodeError(BtrfsModelError, ValueError):
    """The environment selects neither C nor Python: ``BTRFS_MODEL_KERNELS``."""


class UnknownNameError(BtrfsModelError, KeyError):
    """A name that is not one of those that exist."""

    def __init__(self, kind: str, name: str, known: Iterable[str]) -> None:
        super().__init__(kind, name, tuple(map(str, known)))

    def __str__(self) -> str:
        kind, name, known = self.args
        return f"there is no {kind} {name!r}{did_you_mean(name, known)}"


class KernelMissingError(_MissingError):
    """A real kernel that cannot be asked here, with what is missing and who brings it."""


class KernelHungError(BtrfsModelError):
    """A real kernel that did not answer in time, or died; what it said last is a note."""


class KernelFailedError(BtrfsModelError):
    """Something that a real kernel refused; the traceback of who asked it there is a note."""


class CheckWarning(UserWarning):
    """Something that a check notes and that is no fault: kernels do not mind it."""


class BehaviourWarning(UserWarning):
    """A behaviour that is asked for with a toggle that makes no difference to it."""


class NotWrittenWarning(UserWarning):
    """A commit while data wait for writeback, which it does not write."""


@dataclass(frozen=True, slots=True)
class Fault:
    """Where and how a structure is broken; a field that does not apply is 0.

    Attributes
    ----------
    code : int
        One of ``enum bm_code`` in ``native/base/fault.h`` (negative).
    tree, block, slot : int
        Objectid of the tree, logical address of the tree block, slot in it.
    offset : int
        Byte of the image, or of its device, or of the stream.
    found, wanted : int
        What is there and what should be.
    device : int
        The devid, in an image of several devices.
    """

    code: int
    tree: int = 0
    block: int = 0
    slot: int = 0
    offset: int = 0
    found: int = 0
    wanted: int = 0
    device: int = 0


class CorruptImageError(BtrfsModelError, OSError):
    """A structure of an image that is not as it must be.

    It is an :exc:`OSError` too, with the errno that the kernel gives: EIO for what cannot be read,
    EUCLEAN for what was read and is wrong.
    """

    def __init__(self, path: str | os.PathLike[str], fault: Fault, what: str | None = None) -> None:
        self.path = os.fspath(path)
        self.fault = fault
        OSError.__init__(self, _errno_of(fault.code), what or describe(fault))

    def __str__(self) -> str:
        return f"{self.path}: {self.strerror}"


class NotBtrfsError(CorruptImageError):
    """A file in which there is no btrfs filesystem, with what it is instead."""

    def __init__(self, path: str | os.PathLike[str], why: str) -> None:
        super().__init__(path, Fault(Code.BAD_MAGIC), f"no btrfs filesystem: {why}")


class MissingDeviceError(CorruptImageError):
    """Devices of a filesystem that are not there, by devid and uuid, with the chunks on them."""

    def __init__(self, path: str | os.PathLike[str], devid: int, what: str) -> None:
        super().__init__(path, Fault(Code.NO_DEVICE, found=devid), what)


class ReplayBugError(CorruptImageError):
    """A log on which kernels end in a BUG: who mounts it loses the machine."""


class StreamError(BtrfsModelError):
    """A send stream that is not well formed, with the byte and the command it happened at.

    Attributes
    ----------
    offset : int
        Byte of the stream at which the offending command (or header) starts.
    message : str
        What is wrong there.
    """

    def __init__(self, path: str | os.PathLike[str], offset: int, message: str) -> None:
        self.path = os.fspath(path)
        self.offset = offset
        self.message = message
        super().__init__(f"{self.path}: offset {offset}: {message}")


class ReceiveError(StreamError, OSError):
    """A command of a send stream that cannot be carried out; those before it were.

    It is an :exc:`OSError` too, with the errno for which ``btrfs receive`` would give up.

    Attributes
    ----------
    path : str
        The stream.
    offset : int
        Byte of the stream at which the command starts.
    command : str
        Its name.
    message : str
        The command, its paths and what is wrong.
    """

    def __init__(
        self, path: str | os.PathLike[str], offset: int, command: str, number: int, message: str
    ) -> None:
        self.path = os.fspath(path)
        self.offset = offset
        self.command = command
        self.message = message
        OSError.__init__(self, number, message)

    def __str__(self) -> str:
        return f"{self.path}: offset {self.offset}: {self.message}"


_MESSAGES: dict[int, str] = {
    Code.NOMEM: "out of memory",
    Code.UNMAPPED: "no chunk maps logical address {found}",
    Code.PAST_END: "byte {found} is past the end of the device or chunk at {wanted}",
    Code.UNALIGNED: "block address {found} is not aligned to the sector size",
    # in the words of the kernel's log; a fault has what is stored as found
    Code.BAD_CSUM: "bad checksum: wanted {found_bytes} found {wanted_bytes}",
    Code.BAD_BYTENR: "header says address {found}, read at {wanted}",
    Code.BAD_FSID: "header has the fsid of another filesystem",
    Code.BAD_LEVEL: "level {found}, wanted {wanted}",
    Code.BAD_GENERATION: "generation {found}, the parent says {wanted}",
    Code.BAD_NRITEMS: "{found} items where 1 to {wanted} fit",
    Code.BAD_KEY_ORDER: "key is not greater than the one before it",
    Code.BAD_ITEM_RANGE: "item data ends at {found} instead of {wanted}",
    Code.BAD_BLOCKPTR: "bad pointer to block {found}",
    Code.BAD_FIRST_KEY: "first key differs from the key in the parent",
    Code.BAD_OWNER: "block is owned by tree {found}, wanted {wanted}",
    Code.BAD_LAST_KEY: "keys below, in block {found}, are not less than the next pointer's",
    Code.NO_DEVICE: "device {found} is missing",
    Code.BAD_MAGIC: "no btrfs superblock: magic {found:#x} instead of {wanted:#x}",
    Code.BAD_ITEM_SIZE: "item of {found} bytes, at least {wanted} wanted",
    Code.BAD_VALUE: "impossible value {found}",
    Code.NOT_FOUND: "item ({found}, {wanted}) is missing",
    Code.LOOP: "the walk comes back to where it was",
    Code.BAD_DATA: "{wanted} bytes do not come out of decompressing {found}",
    Code.BAD_DATA_CSUM: "bad data checksum: csum {wanted_bytes} expected csum {found_bytes}",
    Code.ERRNO: "errno {found}",
    Code.FILE_CHANGED: "the file was cut off, or cannot be read, since it was opened",
}

_READ_ERRORS = {Code.UNMAPPED, Code.PAST_END, Code.BAD_CSUM, Code.BAD_DATA,
                Code.BAD_DATA_CSUM, Code.BAD_GENERATION, Code.BAD_BYTENR,
                Code.NO_DEVICE, Code.FILE_CHANGED}  # fmt: skip


def _errno_of(code: int) -> int:
    if code == Code.NOMEM:
        return errno.ENOMEM
    return errno.EIO if code in _READ_ERRORS else EUCLEAN


def _sum_bytes(fault: Fault) -> dict[str, str]:
    """Return the first bytes of checksums as ``CSUM_FMT`` writes them, in the order on disk."""
    size = 4 if max(fault.found, fault.wanted) < 1 << 32 else 8
    found, wanted = fault.found, fault.wanted
    return {
        "found_bytes": f"0x{(found & 2**64 - 1).to_bytes(size, 'little').hex()}",
        "wanted_bytes": f"0x{(wanted & 2**64 - 1).to_bytes(size, 'little').hex()}",
    }


def describe(fault: Fault) -> str:
    """One line for a fault: the place, then what is wrong there."""
    place = []
    if fault.tree:
        place.append(f"tree {fault.tree - 2**64 if fault.tree >> 63 else fault.tree}")
    if fault.block:
        place.append(f"block {fault.block}")
        place.append(f"slot {fault.slot}")
    if fault.device:
        place.append(f"device {fault.device}")
    if fault.offset:
        place.append(f"offset {fault.offset}")
    text = _MESSAGES.get(fault.code, f"fault {fault.code}")
    what = text.format(found=fault.found, wanted=fault.wanted, **_sum_bytes(fault))
    return f"{', '.join(place)}: {what}" if place else what
