# SPDX-License-Identifier: GPL-2.0-only
"""Random filesystems in which much is shared, made by the running kernel, and what it says of them.

As root with loop devices and btrfs. :func:`random_sharing` makes a small filesystem of fragmented,
cloned, punched, preallocated and compressed files in subvolumes and snapshots of snapshots; what is
done follows from a seed.
"""

import contextlib
import mmap
import os
import random
import subprocess
from collections.abc import Callable
from pathlib import Path

from live import mounted

from btrfs_model.kernels.inside.ioctls import clone_range

BLOCK = 4096


def btrfs(*arguments: str | Path) -> str:
    """Run a command of btrfs-progs; return what it prints."""
    command = ["btrfs", *map(str, arguments)]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def sectors_read(top: Path) -> int:
    """Sectors of 512 bytes that were read from the device mounted at a folder."""
    mounts = [line.split() for line in Path("/proc/mounts").read_text().splitlines()]
    device = next(device for device, folder, *_ in mounts if folder == str(top))
    return int((Path("/sys/block") / Path(device).name / "stat").read_text().split()[2])


class Sharing:
    """Random changes of files below a mount, each a method; what cannot be done is let be."""

    def __init__(self, top: Path, choice: random.Random) -> None:
        self.top = top
        self.choice = choice
        self.writable = [top]
        self.snapshots: list[Path] = []
        self.count = 0

    def _number(self) -> int:
        self.count += 1
        return self.count

    def _file(self) -> Path:
        below = self.choice.choice(self.writable)
        files = sorted(path for path in below.rglob("f*") if path.is_file())
        return self.choice.choice(files) if files else below / "f0"

    def _offset(self) -> int:
        return self.choice.randrange(90) * BLOCK

    def _length(self) -> int:
        return self.choice.choice([1, 1, 2, 5, 16, 40]) * BLOCK

    def _write(self, path: Path, offset: int, data: bytes) -> None:
        file = os.open(path, os.O_CREAT | os.O_RDWR, 0o644)
        try:
            os.pwrite(file, data, offset)
        finally:
            os.close(file)

    def _bytes(self, length: int) -> bytes:
        half = length // 2
        byte = bytes([self.choice.randrange(1, 256)])
        # one half that compresses, one that does not
        return byte * half + self.choice.randbytes(length - half)

    def create(self) -> None:
        below = self.choice.choice(self.writable)
        length = self._length() + self.choice.choice([0, 0, 100, 3000])
        self._write(below / f"f{self._number()}", 0, self._bytes(length))

    def inline(self) -> None:
        below = self.choice.choice(self.writable)
        self._write(below / f"f{self._number()}", 0, self._bytes(self.choice.randrange(1, 2000)))

    def fragments(self) -> None:
        path = self._file()
        for half in (0, 1):
            for number in range(half, self.choice.choice([10, 60, 160]), 2):
                self._write(path, number * 2 * BLOCK, self._bytes(BLOCK))
            btrfs("filesystem", "sync", self.top)

    def write(self) -> None:
        self._write(self._file(), self._offset(), self._bytes(self._length()))

    def direct(self) -> None:
        file = os.open(self._file(), os.O_CREAT | os.O_RDWR | os.O_DIRECT, 0o644)
        try:
            data = self._bytes(self._length())
            with mmap.mmap(-1, len(data)) as page:
                page.write(data)
                os.pwritev(file, [page], self._offset())
        finally:
            os.close(file)

    def clone(self) -> None:
        source = self._file()
        target = source if self.choice.random() < 0.25 else self._file()
        clone_range(source, self._offset(), self._length(), target, self._offset())

    def clone_file(self) -> None:
        source = self._file()
        target = self.choice.choice(self.writable) / f"f{self._number()}"
        target.touch()
        clone_range(source, 0, 0, target, 0)

    def _fallocate(self, *options: str) -> None:
        offset, length = str(self._offset()), str(self._length())
        command = ["fallocate", *options, "-o", offset, "-l", length, str(self._file())]
        subprocess.run(command, capture_output=True, check=False)

    def punch(self) -> None:
        self._fallocate("-p")

    def preallocate(self) -> None:
        self._fallocate(*self.choice.choice([[], ["-n"]]))

    def truncate(self) -> None:
        os.truncate(self._file(), self.choice.randrange(400_000))

    def unlink(self) -> None:
        self._file().unlink()

    def link(self) -> None:
        source = self._file()
        below = next(top for top in reversed(self.writable) if source.is_relative_to(top))
        folder = below / self.choice.choice(["", f"d{self.choice.randrange(3)}"])
        folder.mkdir(exist_ok=True)
        name = self.choice.choice([f"f{self._number()}", "f" + "x" * 200 + str(self._number())])
        os.link(source, folder / name)

    def snapshot(self) -> None:
        if len(self.snapshots) > 6:
            return
        source = self.choice.choice([*self.writable, *self.snapshots])
        target = self.choice.choice([self.top, *self.writable]) / f"s{self._number()}"
        read_only = self.choice.random() < 0.5
        btrfs("subvolume", "snapshot", *(["-r"] if read_only else []), source, target)
        self.snapshots.append(target)
        if not read_only:
            self.writable.append(target)

    def subvolume(self) -> None:
        if len(self.writable) < 4:
            target = self.choice.choice(self.writable) / f"v{self._number()}"
            btrfs("subvolume", "create", target)
            self.writable.append(target)

    def delete(self) -> None:
        if self.snapshots:
            target = self.choice.choice(self.snapshots)
            btrfs("subvolume", "delete", "--commit-after", target)
            self.snapshots.remove(target)
            self.writable = [path for path in self.writable if path != target]
            if self.choice.random() < 0.5:
                btrfs("subvolume", "sync", self.top)

    def sync(self) -> None:
        btrfs("filesystem", "sync", self.top)

    def many(self) -> None:
        """So many small files that trees have several leaves."""
        below = self.choice.choice(self.writable)
        for _ in range(self.choice.choice([60, 250])):
            self._write(below / f"m{self._number()}", 0, b"small" * self.choice.randrange(40))


def random_sharing(image: Path, seed: int, *, quota: bool = False) -> str:
    """Make a filesystem of 256 MiB.

    Returns
    -------
    str
        With `quota` what ``btrfs qgroup show --raw`` prints in the end.
    """
    choice = random.Random(f"sharing-{seed}")
    with image.open("wb") as file:
        file.truncate(256 << 20)
    nodesize = choice.choice(["4096", "4096", "16384"])
    features = choice.choice([[], [], ["-O", "^no-holes"]])
    subprocess.run(["mkfs.btrfs", "-q", "-f", "-n", nodesize, *features, image], check=True)
    compression = choice.choice(["no", "no", "zlib", "lzo", "zstd"])
    with mounted(image, f"noatime,compress={compression}") as top:
        sharing = Sharing(top, choice)
        kinds: list[Callable[[], None]] = [
            sharing.create, sharing.create, sharing.inline, sharing.fragments, sharing.write,
            sharing.write, sharing.write, sharing.direct, sharing.clone, sharing.clone,
            sharing.clone_file, sharing.punch, sharing.preallocate, sharing.truncate,
            sharing.unlink, sharing.link, sharing.snapshot, sharing.snapshot, sharing.subvolume,
            sharing.delete, sharing.sync, sharing.many,
        ]  # fmt: skip
        sharing.create()
        for _ in range(choice.choice([15, 40, 90])):
            # what is not there, or not to be changed, or beyond the end
            with contextlib.suppress(OSError, subprocess.CalledProcessError):
                choice.choice(kinds)()
        if choice.random() < 0.1:
            btrfs("balance", "start", "-m", top)
        btrfs("subvolume", "sync", top)
        sharing.sync()
        if not quota:
            return ""
        btrfs("quota", "enable", top)
        btrfs("quota", "rescan", "-w", top)
        return btrfs("qgroup", "show", "--raw", top)
