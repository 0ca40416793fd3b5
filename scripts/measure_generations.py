#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0-only
"""The generations of inodes after the same system calls, run after run: ``generations.json``.

Where metadata has little room, a worker of the kernel commits to make some, and the generations of
the inodes that are made after that depend on which call it was (``btrfs_model/volume/
space_info.py``). This carries out recorded calls (``ops.jsonl.zst`` of a random filesystem) on the
running kernel, each time in a fresh filesystem on a loop device, and counts how often it came to
which generations. Needs root, loop devices and btrfs-progs. ::

    scripts/measure_generations.py data/workloads/generations.json ORACLE/send/random [--runs 12] \
        SEED ...

What the file has of other seeds stays, and so do the runs of the same seed: new ones are added.
"""

# paths are bytes, which pathlib does not have
# ruff: noqa: PTH101, PTH102, PTH104, PTH106, PTH108, PTH118, PTH211

import argparse
import ctypes
import fcntl
import hashlib
import json
import os
import platform
import stat
import struct
import subprocess
import tempfile
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from btrfs_model.experiments.scenario.load import load_scenario
from btrfs_model.experiments.scenario.operations import Step
from btrfs_model.kernels.inside.fill import data_of

SIZE = 256 << 20
EXCHANGE = 2
SYNC, SUBVOL_CREATE, SNAP_DESTROY, SNAP_CREATE_V2 = 0x9408, 0x5000940E, 0x5000940F, 0x50009417
CLONE, CLONE_RANGE, DEDUPE = 0x40049409, 0x4020940D, 0xC0189436
GETFLAGS, SETFLAGS, GETVERSION = 0x80086601, 0x40086602, 0x80087601
LIBC = ctypes.CDLL(None, use_errno=True)
FD_CWD = -100


def check(result: int) -> None:
    """Raise what a call of the C library left in errno."""
    if result:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


@contextmanager
def opened(path: bytes, flags: int) -> Iterator[int]:
    """Open a file; yield the descriptor."""
    fd = os.open(path, flags)
    try:
        yield fd
    finally:
        os.close(fd)


def ioctl(path: bytes, number: int, argument: Any = 0, flags: int = os.O_RDONLY) -> Any:
    """Open a file for one ioctl."""
    with opened(path, flags) as fd:
        return fcntl.ioctl(fd, number, argument)


class _Calls:
    """The operations of a scenario on a device, mounted at `top`."""

    def __init__(self, device: Path, top: Path) -> None:
        self.device, self.top = device, os.fsencode(top)

    def carry_out(self, step: Step) -> None:
        """Carry out an operation; one that failed when it was recorded fails again."""
        failing = step.ended.get("err") if step.name != "receive" else None
        try:
            getattr(self, f"do_{step.name}")(**step.arguments)
        except OSError:
            if not failing:
                raise

    def _at(self, path: bytes) -> bytes:
        return os.path.join(self.top, path)

    def _in_parent(self, path: bytes, number: int, *head: int) -> None:
        parent, _, name = self._at(path).rpartition(b"/")
        argument = struct.pack("<qQQ32x4040s", *head, name) if len(head) > 1 else struct.pack(
            "<q4088s", *head, name)  # fmt: skip
        ioctl(parent, number, bytearray(argument))

    def do_mkfs(self, options: list[str]) -> None:
        subprocess.run(["mkfs.btrfs", "-q", "-f", *options, self.device], check=True)

    def do_mount(self, options: str) -> None:
        subprocess.run(["mount", "-t", "btrfs", "-o", options, self.device, self.top], check=True)

    def do_remount(self, options: str) -> None:
        subprocess.run(["umount", self.top], check=True)
        self.do_mount(options)

    def do_mkdir(self, path: bytes, mode: int | None) -> None:
        os.mkdir(self._at(path))
        if mode is not None:
            os.chmod(self._at(path), mode)

    def do_create(self, path: bytes, mode: int) -> None:
        os.close(os.open(self._at(path), os.O_CREAT | os.O_EXCL | os.O_WRONLY, mode))

    def do_mknod(self, path: bytes, mode: int, major: int, minor: int) -> None:
        os.mknod(self._at(path), mode, os.makedev(major, minor))

    def do_symlink(self, target: bytes, path: bytes) -> None:
        os.symlink(target, self._at(path))

    def do_link(self, old: bytes, new: bytes) -> None:
        os.link(self._at(old), self._at(new), follow_symlinks=False)

    def do_unlink(self, path: bytes) -> None:
        os.unlink(self._at(path))

    def do_rmdir(self, path: bytes) -> None:
        os.rmdir(self._at(path))

    def do_rename(self, old: bytes, new: bytes) -> None:
        os.rename(self._at(old), self._at(new))

    def do_exchange(self, old: bytes, new: bytes) -> None:
        check(LIBC.renameat2(FD_CWD, self._at(old), FD_CWD, self._at(new), EXCHANGE))

    def do_write(self, path: bytes, offset: int, length: int, fill: Any) -> None:
        with opened(self._at(path), os.O_WRONLY) as fd:
            os.pwrite(fd, data_of(fill, offset, length), offset)

    def do_truncate(self, path: bytes, size: int) -> None:
        os.truncate(self._at(path), size)

    def do_fallocate(self, path: bytes, mode: int, offset: int, length: int) -> None:
        with opened(self._at(path), os.O_WRONLY) as fd:
            check(LIBC.fallocate(fd, mode, ctypes.c_int64(offset), ctypes.c_int64(length)))

    def do_clone(self, source: bytes, target: bytes) -> None:
        with opened(self._at(source), os.O_RDONLY) as fd:
            ioctl(self._at(target), CLONE, fd, os.O_WRONLY)

    def do_clone_range(
        self, source: bytes, source_offset: int, length: int, target: bytes, target_offset: int
    ) -> None:
        with opened(self._at(source), os.O_RDONLY) as fd:
            argument = struct.pack("<qQQQ", fd, source_offset, length, target_offset)
            ioctl(self._at(target), CLONE_RANGE, argument, os.O_WRONLY)

    def do_dedupe(
        self, source: bytes, source_offset: int, length: int, target: bytes, target_offset: int
    ) -> None:
        with opened(self._at(target), os.O_RDWR) as fd:
            head = struct.pack("<QQHHI", source_offset, length, 1, 0, 0)
            argument = bytearray(head + struct.pack("<qQQiI", fd, target_offset, 0, 0, 0))
            ioctl(self._at(source), DEDUPE, argument)

    def do_fsync(self, path: bytes) -> None:
        with opened(self._at(path), os.O_RDONLY) as fd:
            os.fsync(fd)

    def do_sync(self) -> None:
        ioctl(self.top, SYNC)

    def do_chmod(self, path: bytes, mode: int) -> None:
        os.chmod(self._at(path), mode)

    def do_chown(self, path: bytes, uid: int, gid: int) -> None:
        os.lchown(self._at(path), uid, gid)

    def do_utimes(self, path: bytes, atime: int, mtime: int) -> None:
        os.utime(self._at(path), ns=(atime, mtime), follow_symlinks=False)

    def do_setxattr(self, path: bytes, name: str, value: str) -> None:
        os.setxattr(self._at(path), name, bytes.fromhex(value), follow_symlinks=False)

    def do_removexattr(self, path: bytes, name: str) -> None:
        os.removexattr(self._at(path), name, follow_symlinks=False)

    def do_chattr(self, path: bytes, set: int, clear: int) -> None:  # noqa: A002
        (flags,) = struct.unpack("<q", ioctl(self._at(path), GETFLAGS, bytes(8)))
        ioctl(self._at(path), SETFLAGS, struct.pack("<q", flags & ~clear | set))

    def do_subvol_create(self, path: bytes) -> None:
        self._in_parent(path, SUBVOL_CREATE, 0)

    def do_subvol_delete(self, path: bytes) -> None:
        self._in_parent(path, SNAP_DESTROY, 0)

    def do_snapshot(self, source: bytes, path: bytes, read_only: bool) -> None:
        with opened(self._at(source), os.O_RDONLY | os.O_DIRECTORY) as fd:
            self._in_parent(path, SNAP_CREATE_V2, fd, 0, 2 if read_only else 0)

    def do_receive(self, snapshot: bytes, parent: bytes | None) -> None:
        base = ["-p", self._at(parent)] if parent is not None else []
        send = subprocess.Popen(
            ["btrfs", "send", "-q", *base, self._at(snapshot)], stdout=subprocess.PIPE
        )
        command = ["btrfs", "receive", "-q", self._at(b"recv")]
        subprocess.run(command, stdin=send.stdout, stderr=subprocess.DEVNULL, check=False)
        send.wait()


def generations(top: Path, snapshot: str) -> list[list[Any]]:
    """Return snapshot, path and generation of each directory and regular file of a snapshot."""
    root, rows = top / snapshot, []
    for folder, _, files in os.walk(root):
        for path in [Path(folder), *(Path(folder, name) for name in files)]:
            if stat.S_IFMT(path.lstat().st_mode) not in (stat.S_IFREG, stat.S_IFDIR):
                continue
            # not of what stands for a subvolume that is not there
            with suppress(OSError):
                (number,) = struct.unpack("<I4x", ioctl(os.fsencode(path), GETVERSION, bytes(8)))
                relative = str(path.relative_to(root)) if path != root else ""
                rows.append([snapshot, relative, number])
    return rows


def one_run(operations: Path, snapshots: list[str]) -> str:
    """Carry a scenario out; return the digest of all generations."""
    with tempfile.TemporaryDirectory() as folder:
        image, top = Path(folder, "image"), Path(folder, "top")
        top.mkdir()
        with image.open("wb") as file:
            file.truncate(SIZE)
        attach = ["losetup", "-f", "--show", image]
        device = subprocess.run(attach, check=True, capture_output=True, text=True).stdout.strip()
        try:
            calls = _Calls(Path(device), top)
            for step in load_scenario(operations).steps:
                calls.carry_out(step)
            calls.do_sync()
            rows = [row for snapshot in snapshots for row in generations(top, snapshot)]
        finally:
            subprocess.run(["umount", top], check=False)
            subprocess.run(["losetup", "-d", device], check=True)
    return hashlib.sha256(json.dumps(sorted(rows)).encode()).hexdigest()


def main() -> None:
    """Measure and store."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("file", type=Path)
    parser.add_argument("folder", type=Path, help="with seed-NNN/case.json and ops.jsonl.zst")
    parser.add_argument("seeds", type=int, nargs="+")
    parser.add_argument("--runs", type=int, default=12)
    arguments = parser.parse_args()
    known = json.loads(arguments.file.read_text()) if arguments.file.exists() else {}
    kernel = platform.release().split("-")[0]
    for seed in arguments.seeds:
        name = f"seed-{seed:03}"
        case = json.loads((arguments.folder / name / "case.json").read_text())
        operations = arguments.folder / name / "ops.jsonl.zst"
        found = Counter(known.get(name, {}).get(kernel, {}))
        for _ in range(arguments.runs):
            found[one_run(operations, list(case["subvolumes"]))] += 1
        known.setdefault(name, {})[kernel] = dict(found.most_common())
        arguments.file.write_text(json.dumps(known, indent=1, sort_keys=True) + "\n")
        print(name, *found.values())


if __name__ == "__main__":
    main()
