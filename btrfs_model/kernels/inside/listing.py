# SPDX-License-Identifier: GPL-2.0-only
"""What a kernel lists of the subvolumes of a mounted filesystem."""

from __future__ import annotations

import fcntl
import hashlib
import os
import stat
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from btrfs_model.kernels.inside.ioctls import number, opened

Listing = dict[str, dict[str, dict[str, Any]]]
"""Records by subvolume and path."""

_GETFLAGS = number(2, 1, 8, ord("f"))
_GETVERSION = number(2, 1, 8, ord("v"))
_TOP = 256
_EMPTY_SUBVOL_DIR = 2


def kernel_listing(top: Path, paths: list[str]) -> Listing:
    """List subvolumes as a kernel does; of subvolumes inside them the path alone."""
    return {path: dict(_records(top / path, "")) for path in paths}


def _records(subvolume: Path, path: str) -> Iterator[tuple[str, dict[str, Any]]]:
    at = subvolume / path
    status = at.lstat()
    if path and status.st_ino in (_TOP, _EMPTY_SUBVOL_DIR):
        yield path, {}
        return
    yield path, _record(at, status)
    if stat.S_ISDIR(status.st_mode):
        for entry in sorted(os.listdir(at)):  # noqa: PTH208
            yield from _records(subvolume, f"{path}/{entry}" if path else entry)


def _record(at: Path, status: os.stat_result) -> dict[str, Any]:
    mode = status.st_mode
    record = {"ino": status.st_ino, "mode": f"{mode:o}", "nlink": status.st_nlink,
              "uid": status.st_uid, "gid": status.st_gid, "size": status.st_size,
              "atime": status.st_atime_ns, "mtime": status.st_mtime_ns,
              "ctime": status.st_ctime_ns}  # fmt: skip
    if stat.S_ISREG(mode) or stat.S_ISDIR(mode):
        with opened(at) as fd:
            for name, asked in (("gen", _GETVERSION), ("flags", _GETFLAGS)):
                found = fcntl.ioctl(fd, asked, bytes(8))
                record[name] = struct.unpack_from("<I", found)[0]
    if stat.S_ISREG(mode):
        record["sha256"] = hashlib.sha256(at.read_bytes()).hexdigest()
    if stat.S_ISLNK(mode):
        record["target"] = os.readlink(at)  # noqa: PTH115
    if stat.S_ISCHR(mode) or stat.S_ISBLK(mode):
        record["rdev"] = [os.major(status.st_rdev), os.minor(status.st_rdev)]
    xattrs = {name: os.getxattr(at, name, follow_symlinks=False).hex()
              for name in os.listxattr(at, follow_symlinks=False)}  # fmt: skip
    if xattrs:
        record["xattrs"] = xattrs
    return record
