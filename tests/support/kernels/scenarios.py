# SPDX-License-Identifier: GPL-2.0-only
"""Random scenarios, carried out by the model and by the running kernel, and what comes of them.

:func:`random_scenario` makes one from a seed: names, data, attributes, subvolumes, and the options
of mkfs.btrfs and mount. Many of its operations fail, on both sides with the same errno.
"""

import errno
import fcntl
import os
import random
import stat
import struct
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import calls
import live
from kernel_listing import as_recorded
from kernel_records import Listing, kernel_listing
from writing import KernelFiles

from btrfs_model.experiments.scenario.load import Scenario
from btrfs_model.experiments.scenario.operations import Step, data_of, parse_step
from btrfs_model.experiments.scenario.run import _Runner
from btrfs_model.kernels.inside.calls import KernelCalls
from btrfs_model.mount.writable import WritableFilesystem
from btrfs_model.volume.filesystem import Filesystem
from btrfs_model.volume.listing import EMPTY_SUBVOL_DIR

SIZE = 128 << 20
_BLOCK = 4096
_CLONE = struct.Struct("<qQQQ")
_FICLONERANGE = 1 << 30 | _CLONE.size << 16 | 0x94 << 8 | 13
_EXCHANGE = 2


# ------------------------------------------------------------------------------ random scenarios --


def random_scenario(seed: object, *, portable: bool = False) -> Scenario:
    """A scenario of 20 to 60 operations.

    Where it is `portable` mkfs.btrfs of btrfs-progs 6.2 can make its filesystem too.
    """
    choice = random.Random(f"scenario {seed}")
    lines: list[list[Any]] = [["mkfs", _mkfs_options(choice, portable)],
                              ["mount", _mount_options(choice)]]  # fmt: skip
    lines += [["mkdir", "a"], ["mkdir", "b"], ["mkdir", "a/c"], ["create", "c"], ["create", "a/a"],
              ["subvol_create", "sub"], ["create", "sub/d"]]  # fmt: skip
    data, subvolumes = choice.random() < 0.7, choice.random() < 0.7
    if subvolumes:
        lines.append(["snapshot", "sub", "snap", choice.random() < 0.3])
    for _ in range(choice.randint(20, 60)):
        if data and choice.random() < 0.5:
            lines.append(_data_operation(choice))
        elif line := _as_operation(calls.random_call(choice, subvolumes=subvolumes)):
            lines.append(line)
    steps = [parse_step(f"seed {seed}", number, line) for number, line in enumerate(lines, 1)]
    return Scenario(f"seed {seed}", steps, hex_values=True)


def _mkfs_options(choice: random.Random, portable: bool) -> list[str]:
    nodesize = choice.choice(["4096", "16384", "16384"])
    options = ["-n", nodesize]
    if choice.random() < 0.3:
        options += ["-m", "single", "-d", "single"]
    if choice.random() < 0.3:
        options += ["--csum", choice.choice(["xxhash", "sha256", "blake2"])]
    if choice.random() < 0.4:
        options += ["-O", choice.choice(["^no-holes", "^skinny-metadata", "^extref,^no-holes"])]
    elif choice.random() < 0.3 and not portable and nodesize == "16384":
        options += ["-O", "block-group-tree"]
    elif choice.random() < 0.2:
        options += ["-R", "^free-space-tree"]
    return options


def _mount_options(choice: random.Random) -> str:
    compression = choice.choice(["", "", "compress=zlib", "compress=lzo", "compress=zstd",
                                 "compress-force=zstd"])  # fmt: skip
    inline = choice.choice(["", "", "max_inline=0", "max_inline=512"])
    return ",".join(filter(None, ["noatime", compression, inline]))


def _as_operation(call: calls.Call) -> list[Any] | None:
    """A call as an operation of a scenario; None where there is none for it."""
    name, *args = call
    match name:
        case "rename":
            flags = args[2] if len(args) > 2 else 0
            return {0: ["rename", *args[:2]], _EXCHANGE: ["exchange", *args[:2]]}.get(flags)
        case "mknod":
            path, mode, device = (*args, 0)[:3]
            return ["mknod", path, mode, os.major(device), os.minor(device)]
        case "setxattr":
            return ["setxattr", args[0], args[1], args[2].hex()]
        case "create_subvolume":
            return ["subvol_create", *args]
        case "delete_subvolume":
            return ["subvol_delete", *args]
        case "set_read_only" | "set_received_subvolume":
            return None
    return [name, *args]


def _data_operation(choice: random.Random) -> list[Any]:
    one = choice.choice
    path = one(["c", "c", "a/a", "a/a", "sub/d", "sub/d", "snap/d", "d", "a"])
    other = one(["c", "a/a", "sub/d", "b/f"])
    offset = max(one([0, 0, 1, 2, 5, 30]) * _BLOCK + one([0, 0, 0, 1, -1, 100, 3000]), 0)
    length = one([1, 100, 2047, 2048, 2049, _BLOCK, 5000, 3 * _BLOCK, 70_000, 200_000])
    at, to, part = (one([0, 0, 1, 2, 8]) * _BLOCK for _ in range(3))
    fill = one([7, ["zero"], ["pat", "a"], ["pat", "b"], ["rnd", str(offset)]])
    kinds: list[tuple[int, list[Any]]] = [
        (12, ["write", path, offset, length, fill]),
        (3, ["truncate", path, one([0, offset, length, offset + length])]),
        (4, ["fallocate", path, one([0, 1, 3, 3, 16, 17]), offset, length]),
        (3, ["clone_range", path, at, part, other, to]),
        (1, ["clone", path, other]),
        (2, [one(["fsync", "fdatasync"]), path]),
        (1, ["sync"]),
        (1, ["remount"]),
        (1, ["setxattr", path, "btrfs.compression", one([b"zstd", b"zlib", b"lzo", b""]).hex()]),
    ]
    return choice.choices([line for _, line in kinds], [weight for weight, _ in kinds])[0]


# ---------------------------------------------------------------------------------- in the model --


def _taken(runner: Any, steps: list[Step]) -> list[str]:
    """Carry out operations; how each ended: the name of its errno, or nothing."""
    ended = []
    for step in steps:
        try:
            runner.carry_out(step)
            ended.append("")
        except OSError as error:
            ended.append(errno.errorcode[error.errno or 0])
    return ended


@contextmanager
def model_run(scenario: Scenario) -> Iterator[tuple[WritableFilesystem, list[str]]]:
    """Carry a scenario out in the model; the filesystem, committed, and how each step ended."""
    runner = _Runner(scenario, SIZE, 0)
    try:
        ended = _taken(runner, scenario.steps)
        runner.fs().sync()
        yield runner.fs(), ended
    finally:
        runner.close()


def model_listing(fs: Filesystem) -> Listing:
    """What is in each subvolume; of subvolumes inside it the path alone."""
    return {
        path: {
            row["path"]: {} if row["ino"] == EMPTY_SUBVOL_DIR else as_recorded(row)
            for row in fs.listing(path).to_dict("records")
        }
        for path in fs.subvolumes()["path"]
    }


# --------------------------------------------------------------------------------- in the kernel --


class _KernelSteps:
    """The operations of scenarios below a mount point."""

    def __init__(self, image: Path, top: Path, options: str, hex_values: bool) -> None:
        self.image = image
        self.top = top
        self.options = options
        self.hex_values = hex_values
        self.names = KernelCalls(top)
        self.files = KernelFiles(top)

    def _at(self, path: bytes) -> str:
        return f"{self.top}/{os.fsdecode(path)}"

    def _regular(self, path: bytes, otherwise: int) -> None:
        """Open nothing that is no file: for those the model always has the same errno."""
        mode = os.stat(self._at(path)).st_mode  # noqa: PTH116
        if stat.S_ISDIR(mode):
            raise OSError(errno.EISDIR, "")
        if not stat.S_ISREG(mode):
            raise OSError(otherwise, "")

    def __getattr__(self, name: str) -> Any:
        """Operations that are calls of the same arguments."""
        renamed = {"subvol_create": "create_subvolume", "subvol_delete": "delete_subvolume"}
        own = name.removeprefix("do_")
        call = getattr(self.names, renamed.get(own, own))
        return lambda **arguments: call(
            *(os.fsdecode(value) if isinstance(value, bytes) else value
              for value in arguments.values())
        )  # fmt: skip

    def carry_out(self, step: Step) -> None:
        getattr(self, f"do_{step.name}")(**step.arguments)

    def do_mkfs(self, options: list[str]) -> None:
        pass  # see kernel_run()

    def do_mount(self, options: str) -> None:
        pass

    def do_remount(self, options: str | None) -> None:
        subprocess.run(["umount", str(self.top)], check=True)
        subprocess.run(["mount", "-o", f"loop,{options or self.options}", str(self.image),
                        str(self.top)], check=True)  # fmt: skip

    def do_mkdir(self, path: bytes, mode: int | None) -> None:
        self.names.mkdir(os.fsdecode(path))
        if mode is not None:
            self.names.chmod(os.fsdecode(path), mode)

    def do_mknod(self, path: bytes, mode: int, major: int, minor: int) -> None:
        self.names.mknod(os.fsdecode(path), mode, os.makedev(major, minor))

    def do_exchange(self, old: bytes, new: bytes) -> None:
        self.names.rename(os.fsdecode(old), os.fsdecode(new), _EXCHANGE)

    def do_chown(self, path: bytes, uid: int, gid: int) -> None:
        os.chown(self._at(path), uid, gid, follow_symlinks=False)

    def do_utimes(self, path: bytes, atime: int, mtime: int) -> None:
        os.utime(self._at(path), ns=(atime, mtime), follow_symlinks=False)

    def do_setxattr(self, path: bytes, name: str, value: str) -> None:
        data = bytes.fromhex(value) if self.hex_values else value.encode()
        os.setxattr(self._at(path), name, data, follow_symlinks=False)

    def do_removexattr(self, path: bytes, name: str) -> None:
        os.removexattr(self._at(path), name, follow_symlinks=False)

    def do_write(self, path: bytes, offset: int, length: int, fill: Any) -> None:
        self._regular(path, errno.EINVAL)
        self.files.write(os.fsdecode(path), offset, data_of(fill, offset, length))

    def do_truncate(self, path: bytes, size: int) -> None:
        os.truncate(self._at(path), size)

    def do_fallocate(self, path: bytes, mode: int, offset: int, length: int) -> None:
        self._regular(path, errno.ENODEV)
        self.files._fallocate(os.fsdecode(path), mode, offset, length)

    def do_clone(self, source: bytes, target: bytes) -> None:
        self.do_clone_range(source, 0, 0, target, 0)

    def do_clone_range(
        self, source: bytes, source_offset: int, length: int, target: bytes, target_offset: int
    ) -> None:
        source_fd = os.open(self._at(source), os.O_RDONLY | os.O_NONBLOCK)
        try:
            target_fd = os.open(self._at(target), os.O_RDWR | os.O_NONBLOCK)
            try:
                argument = _CLONE.pack(source_fd, source_offset, length, target_offset)
                fcntl.ioctl(target_fd, _FICLONERANGE, argument)
            finally:
                os.close(target_fd)
        finally:
            os.close(source_fd)

    def do_fsync(self, path: bytes) -> None:
        kind = stat.S_IFMT(os.stat(self._at(path)).st_mode)  # noqa: PTH116
        if kind not in (stat.S_IFREG, stat.S_IFDIR):
            return  # what is opened is no longer of this filesystem
        fd = os.open(self._at(path), os.O_RDONLY | os.O_NONBLOCK)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)

    def do_fdatasync(self, path: bytes) -> None:
        self.do_fsync(path)


def kernel_run(scenario: Scenario, image: Path, paths: list[str]) -> tuple[list[str], Listing]:
    """Carry a scenario out on a fresh filesystem of mkfs.btrfs; how each step ended, and a listing.

    Parameters
    ----------
    scenario : Scenario
        Its first two operations are mkfs and mount.
    image : Path
        Where.
    paths : list of str
        Subvolumes that are listed.
    """
    options = scenario.steps[0].arguments["options"]
    mount = scenario.steps[1].arguments["options"]
    with image.open("wb") as file:
        file.truncate(SIZE)
    subprocess.run(["mkfs.btrfs", "-q", "-f", *options, str(image)], check=True,
                   capture_output=True)  # fmt: skip
    with live.mounted(image, mount) as top:
        ended = _taken(_KernelSteps(image, top, mount, scenario.hex_values), scenario.steps)
        subprocess.run(["btrfs", "filesystem", "sync", str(top)], check=True, capture_output=True)
        return ended, kernel_listing(top, paths)
