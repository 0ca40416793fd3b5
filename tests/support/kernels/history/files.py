# SPDX-License-Identifier: GPL-2.0-only
"""What users do with files and subvolumes of a mounted filesystem, at random.

Of Python's library alone: this also runs in guests that have nothing else.
"""

import mmap
import os
import random
import stat
from collections.abc import Callable, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

from btrfs_model.kernels.inside.calls import KernelCalls
from btrfs_model.kernels.inside.ioctls import clone_range, dedupe_range
from btrfs_model.kernels.inside.mounts import run

BLOCK = 4096
_SUBVOLUME = 256
_NOCOW = 0x800000
_FLAGS = [4, 0x400, 0x80, 0x8, 0x40, 0x10000]  # +c, +m, +A, +S, +d, +D
_COMPRESSIONS = [b"zlib", b"lzo", b"zstd", b"", b"no"]


class Files:
    """Random changes below a mount, each a method; what cannot be done raises OSError.

    `writable`: paths of the subvolumes in which files are changed, from the top.
    `snapshots`: those of the others.
    """

    def __init__(self, top: Path, choice: random.Random) -> None:
        self.top = top
        self.choice = choice
        self.calls = KernelCalls(top)
        self.writable, self.snapshots = [""], list[str]()
        self.count = 0
        self.kinds: list[Callable[[], object]] = [
            *[self.create] * 4, *[self.write] * 4, self.append, self.fragments, self.direct,
            *[self.clone] * 2, self.clone_file, self.storm, self.dedupe, self.punch, self.zero,
            self.preallocate, self.truncate, self.mkdir, self.link, self.symlink, self.special,
            *[self.rename] * 2, self.exchange, *[self.unlink] * 2, self.remove_folder,
            self.attributes, self.xattr, self.flag, self.nocow, self.compression, self.defragment,
            self.many, self.subvolume, *[self.snapshot] * 2, self.delete, self.fsync, self.sync,
            self.thaw, self.default, self.unnamed,
        ]  # fmt: skip

    def look_again(self) -> None:
        """Forget subvolumes that a crash took away."""
        there = [path for path in self.writable + self.snapshots if (self.top / path).is_dir()]
        self.writable = [path for path in self.writable if path in there]
        self.snapshots = [path for path in self.snapshots if path in there]

    # ------------------------------------------------------------------------------- choosing --

    def _entries(self, folder: Path) -> Iterator[tuple[Path, os.stat_result]]:
        for name in sorted(os.listdir(folder)):  # noqa: PTH208
            status = (folder / name).lstat()
            if stat.S_ISDIR(status.st_mode) and status.st_ino in (2, _SUBVOLUME):
                continue
            yield folder / name, status
            if stat.S_ISDIR(status.st_mode):
                yield from self._entries(folder / name)

    def _subvolume(self) -> Path:
        return self.top / self.choice.choice(self.writable)

    def _chosen(self, *kinds: int, top: Path | None = None) -> Path:
        found = [path for path, status in self._entries(top or self._subvolume())
                 if stat.S_IFMT(status.st_mode) in kinds]  # fmt: skip
        if not found:
            raise FileNotFoundError("there is none")
        return self.choice.choice(found)

    def file(self) -> Path:
        return self._chosen(stat.S_IFREG)

    def _entry(self, top: Path | None = None) -> Path:
        return self._chosen(stat.S_IFREG, stat.S_IFDIR, stat.S_IFLNK, stat.S_IFIFO, top=top)

    def _folder(self, top: Path | None = None) -> Path:
        top = top or self._subvolume()
        folders = [path for path, status in self._entries(top) if stat.S_ISDIR(status.st_mode)]
        return self.choice.choice([top, top, *folders])

    def _new(self, top: Path | None = None) -> Path:
        self.count += 1
        few = self.choice.choice(["a", "b", "c", "d"])
        name = self.choice.choice([few, f"{few}{self.count}", few * 180 + str(self.count % 9)])
        return self._folder(top) / name

    def _offset(self) -> int:
        return self.choice.randrange(60) * BLOCK

    def _length(self) -> int:
        return self.choice.choice([1, 1, 2, 5, 16, 40]) * BLOCK

    def _bytes(self, length: int) -> bytes:
        half = self.choice.choice([0, length // 2, length])
        # one part that compresses, one that does not; a few blocks are alike in all files
        byte = bytes([self.choice.choice([0, 65, 65, self.choice.randrange(256)])])
        return byte * half + self.choice.randbytes(length - half)

    def _size(self) -> int:
        return self.choice.choice(
            [0, 10, 1000, 3000, BLOCK, 2 * BLOCK + 100, 50_000, 140_000, 20 * BLOCK]
        )

    def put(self, path: Path, offset: int, data: bytes, flags: int = 0) -> None:
        """Write, whether there is a file already or not."""
        fd = os.open(path, os.O_CREAT | os.O_RDWR | flags, 0o644)
        try:
            os.pwrite(fd, data, offset)
        finally:
            os.close(fd)

    # ---------------------------------------------------------------------------------- files --

    def create(self) -> None:
        self.put(self._new(), 0, self._bytes(self._size()), os.O_EXCL)

    def write(self) -> None:
        offset = self._offset() + self.choice.choice([0, 0, 0, 1, 100])
        self.put(self.file(), offset, self._bytes(self._length() - self.choice.choice([0, 7])))

    def append(self) -> None:
        path = self.file()
        self.put(path, path.stat().st_size, self._bytes(self.choice.choice([1, 100, BLOCK])))

    def fragments(self) -> None:
        path = self.file()
        for half in (0, 1):
            for number in range(half, self.choice.choice([6, 20, 60]), 2):
                self.put(path, number * 2 * BLOCK, self._bytes(BLOCK))
            self.sync()

    def direct(self) -> None:
        fd = os.open(self.file(), os.O_RDWR | os.O_DIRECT)
        try:
            data = self._bytes(self._length())
            with mmap.mmap(-1, len(data)) as page:
                page.write(data)
                os.pwritev(fd, [page], self._offset())
        finally:
            os.close(fd)

    def clone(self) -> None:
        source = self.file()
        target = source if self.choice.random() < 0.2 else self.file()
        clone_range(source, self._offset(), self._length(), target, self._offset())

    def storm(self) -> None:
        """Refer to one extent so often that its item has no room for that."""
        source, target = self.file(), self.file()
        for number in range(self.choice.choice([30, 300])):
            clone_range(source, 0, BLOCK, target, number * 2 * BLOCK)

    def clone_file(self) -> None:
        source, target = self.file(), self._new()
        target.touch()
        clone_range(source, 0, 0, target, 0)

    def dedupe(self) -> None:
        source, target = self.file(), self.file()
        data = self._bytes(4 * BLOCK)
        self.put(source, 0, data)
        at = self._offset()
        self.put(target, at, data)
        with source.open("rb") as one, target.open("r+b") as other:
            dedupe_range(one.fileno(), 0, len(data), other.fileno(), at)

    def _fallocate(self, *options: str) -> None:
        offset, length = str(self._offset()), str(self._length())
        run("fallocate", *options, "-o", offset, "-l", length, str(self.file()))

    def punch(self) -> None:
        self._fallocate("-p")

    def zero(self) -> None:
        self._fallocate("-z")

    def preallocate(self) -> None:
        self._fallocate(*self.choice.choice([[], ["-n"]]))

    def truncate(self) -> None:
        os.truncate(self.file(), self.choice.randrange(300_000))

    def defragment(self) -> None:
        compression = self.choice.choice([[], ["-czlib"], ["-clzo"], ["-czstd"]])
        span = self.choice.choice([[], ["-s", str(self._offset()), "-l", str(self._length())]])
        path = self.choice.choice([["-r", str(self._folder())], [str(self.file())]])
        run("btrfs", "-q", "filesystem", "defragment", *compression, *span, "-t", "1M", *path)

    def fsync(self) -> None:
        fd = os.open(self.file(), os.O_RDONLY)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)

    def swap(self) -> None:
        """A swap file, in use for a moment."""
        path = self._new()
        path.touch(mode=0o600, exist_ok=False)
        run("chattr", "+C", str(path))
        self.put(path, 0, bytes(1 << 20))
        self.sync()
        run("mkswap", str(path))
        run("swapon", str(path))
        run("swapoff", str(path))

    # ------------------------------------------------------------------ names and what is known --

    def mkdir(self) -> None:
        self._new().mkdir()

    def link(self) -> None:
        source = self.file()
        for _ in range(self.choice.choice([1, 1, 1, 90])):
            self.count += 1
            os.link(source, source.parent / (f"link{self.count}" + "l" * 99))

    def unnamed(self) -> None:
        """A file that has a name only later."""
        folder = self._folder()
        fd = os.open(folder, os.O_TMPFILE | os.O_RDWR, 0o600)
        try:
            os.write(fd, self._bytes(self._size()))
            if self.choice.random() < 0.5:
                self.sync()
            self.count += 1
            os.link(f"/proc/self/fd/{fd}", folder / f"named{self.count}", follow_symlinks=True)
        finally:
            os.close(fd)

    def symlink(self) -> None:
        self._new().symlink_to(self.choice.choice(["a", "../b", "x" * 500]))

    def special(self) -> None:
        kind = self.choice.choice([stat.S_IFIFO, stat.S_IFSOCK, stat.S_IFCHR])
        os.mknod(self._new(), kind | 0o600, os.makedev(1, 3))

    def rename(self) -> None:
        top = self._subvolume()
        self._entry(top).rename(self._new(top))

    def exchange(self) -> None:
        top = self._subvolume()
        paths = (str(self._entry(top).relative_to(self.top)) for _ in range(2))
        self.calls.rename(*paths, flags=2)

    def unlink(self) -> None:
        self.file().unlink()

    def remove_folder(self) -> None:
        self._chosen(stat.S_IFDIR).rmdir()

    def attributes(self) -> None:
        path = self._chosen(stat.S_IFREG, stat.S_IFDIR)
        path.chmod(self.choice.choice([0o600, 0o755, 0o4711]))
        os.chown(path, self.choice.randrange(3), self.choice.randrange(3))

    def xattr(self) -> None:
        path, name = self._entry(), f"trusted.{self.choice.choice('xyz')}"
        if self.choice.random() < 0.2:
            os.removexattr(path, name, follow_symlinks=False)
        else:
            value = self.choice.randbytes(self.choice.choice([0, 9, 800]))
            os.setxattr(path, name, value, follow_symlinks=False)

    def flag(self) -> None:
        path = str(self._chosen(stat.S_IFREG, stat.S_IFDIR).relative_to(self.top))
        self.calls.chattr(path, self.choice.choice(_FLAGS), self.choice.choice(_FLAGS))

    def nocow(self) -> None:
        path = self._new()
        path.touch(exist_ok=False)
        self.calls.chattr(str(path.relative_to(self.top)), _NOCOW, 0)
        self.put(path, 0, self._bytes(30 * BLOCK))

    def compression(self) -> None:
        path = self._chosen(stat.S_IFREG, stat.S_IFDIR)
        os.setxattr(path, "btrfs.compression", self.choice.choice(_COMPRESSIONS))

    def many(self) -> None:
        """So many small files that trees have several leaves."""
        folder = self._folder() / f"many{self.count}"
        folder.mkdir()
        for number in range(self.choice.choice([30, 100])):
            self.put(folder / f"file{number}", 0, b"small" * self.choice.choice([0, 20, 300]))

    # ----------------------------------------------------------------------------- subvolumes --

    def subvolume(self) -> None:
        if len(self.writable) < 4:
            self.count += 1
            path = f"v{self.count}"
            self.calls.create_subvolume(path)
            self.writable.append(path)

    def snapshot(self) -> None:
        if len(self.snapshots) > 4:
            return
        self.count += 1
        source, read_only = self.choice.choice(self.writable), self.choice.random() < 0.75
        below = self.choice.choice(["", f"{self.choice.choice(self.writable)}/"])
        path = f"{below.lstrip('/')}s{self.count}"
        self.calls.snapshot(source, path, read_only)
        (self.snapshots if read_only else self.writable).append(path)

    def thaw(self) -> None:
        """Make a snapshot writable, or a subvolume a snapshot."""
        thaw = self.choice.random() < 0.5
        one, other = (self.snapshots, self.writable) if thaw else (self.writable, self.snapshots)
        path = self.choice.choice(one)
        if path:
            self.calls.set_read_only(path, not thaw)
            one.remove(path)
            other.append(path)

    def default(self) -> None:
        path = self.choice.choice([*self.writable, *self.snapshots])
        run("btrfs", "subvolume", "set-default", str(self.top / path))

    def received(self) -> None:
        """Receive a snapshot that was sent, whole or as a change of another."""
        path = self.top / self.choice.choice(self.snapshots)
        parent = ["-p", str(self.top / self.choice.choice(self.snapshots))]
        self.count += 1
        target = self.top / f"received{self.count}"
        target.mkdir()
        for options in ([], parent):
            with TemporaryDirectory() as folder:
                stream = f"{folder}/stream"
                run("btrfs", "-q", "send", *options, "-f", stream, str(path))
                run("btrfs", "-q", "receive", "-f", stream, str(target))
            self.snapshots.append(f"{target.name}/{path.name}")
            target = target / "changed"
            target.mkdir()

    def delete(self) -> None:
        path = self.choice.choice([*self.snapshots, *self.writable[1:]] or [""])
        self.calls.delete_subvolume(path)
        self.snapshots = [one for one in self.snapshots if one != path]
        self.writable = [one for one in self.writable if one != path]
        if self.choice.random() < 0.5:
            self.calls.clean()

    def sync(self) -> None:
        self.calls.sync()
