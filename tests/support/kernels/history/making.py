# SPDX-License-Identifier: GPL-2.0-only
"""Filesystems with a history: what happens to real ones in years, in a second.

:func:`make` is called in a kernel. Everything follows from a seed but uuids, times and what threads
of the kernel do meanwhile. Of Python's library alone: this also runs in guests.
"""

import fcntl
import os
import random
import shutil
import struct
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from btrfs_model.kernels.inside.mounts import run
from history import wide
from history.files import Files
from history.several import Several

MB = 1 << 20
SIZE = 288 * MB
_SUPER, _SUPER_SIZE, _LOG_ROOT, _TOTAL, _COMPAT_RO = 65536, 4096, 96, 112, 180
_QUOTA_CTL = 3 << 30 | 16 << 16 | 0x94 << 8 | 40
_SIMPLE_QUOTAS = 4
_RELOCATION = "(TREE_RELOC ROOT_ITEM"

_ALL = "rw,subvolid=5,degraded"
_OPTIONS = [
    "compress=zlib", "compress=lzo", "compress=zstd:1", "compress-force=zstd", "nodatacow",
    "compress-force=lzo", "nodatasum", "autodefrag", "ssd", "ssd_spread", "nossd",
    "space_cache=v1", "space_cache=v2", "nospace_cache", "max_inline=0", "max_inline=100",
    "max_inline=4095", "commit=1", "discard", "discard=async", "nodiscard", "notreelog",
    "flushoncommit", "clear_cache", "thread_pool=1", "noatime", "nobarrier",
    "rescan_uuid_tree", "usebackuproot", "fatal_errors=bug", "acl", "noacl",
]  # fmt: skip


def copied(source: Path, target: Path) -> None:
    """Copy a sparse file."""
    with source.open("rb") as one, target.open("wb") as other:
        other.truncate(end := os.fstat(one.fileno()).st_size)
        at = 0
        while at < end:
            try:
                at = os.lseek(one.fileno(), at, os.SEEK_DATA)
            except OSError:  # holes to the end
                break
            hole = os.lseek(one.fileno(), at, os.SEEK_HOLE)
            other.seek(at)
            while at < hole:
                at += os.sendfile(other.fileno(), one.fileno(), at, hole - at)


def removed(image: Path) -> None:
    """Remove an image, or a folder of devices."""
    if image.is_dir():
        shutil.rmtree(image)
    else:
        image.unlink()


def superblock(image: Path) -> bytes:
    """The bytes of the first superblock, of the first device."""
    with wide.files(image)[0].open("rb") as file:
        return os.pread(file.fileno(), _SUPER_SIZE, _SUPER)


def has_log(image: Path) -> bool:
    """Whether an image has logs of fsyncs."""
    found: int = struct.unpack_from("<Q", superblock(image), _LOG_ROOT)[0]
    return bool(found)


def has_block_group_tree(image: Path) -> bool:
    """Whether block groups have a tree of their own."""
    flags: int = struct.unpack_from("<Q", superblock(image), _COMPAT_RO)[0]
    return bool(flags & 8)


class History:
    """A filesystem on a loop device, and what happens to it.

    `image`, `loop`: its file and device, the first where there are several.
    `others`: files and devices of the rest.
    `log` says what was done and what failed; `images` what is to be looked at in the end.
    """

    def __init__(self, folder: Path, top: Path, seed: str) -> None:
        self.choice = random.Random(f"history {seed}")
        self.folder, self.top = folder, top
        top.mkdir(exist_ok=True)
        self.count = 0
        self.image = self.new_file(SIZE)
        self.loop = ""
        self.others: list[tuple[Path, str]] = []
        self.log: list[str] = []
        self.images: list[tuple[str, str]] = []
        self.files = Files(top, self.choice)

    def new_file(self, size: int) -> Path:
        self.count += 1
        path = self.folder / f"device-{self.count}"
        with path.open("wb") as file:
            file.truncate(size)
        return path

    def do(self, what: Callable[..., object], *arguments: Any) -> bool:
        """Do something that may fail."""
        said = " ".join([what.__name__, *map(str, arguments)])
        try:
            what(*arguments)
        except (OSError, IndexError) as error:
            self.log.append(f"{said}: {error}"[:200])
            return False
        self.log.append(said)
        return True

    # -------------------------------------------------------------------------------- devices --

    @property
    def members(self) -> list[tuple[Path, str]]:
        """Files and devices."""
        return [(self.image, self.loop), *self.others]

    def mount(self, options: str) -> None:
        files = [file for file, _ in self.members]
        loops = [wide.attach(file) for file in files]
        self.loop, self.others = loops[0], list(zip(files[1:], loops[1:], strict=True))
        options += wide.option(loops[1:])
        try:
            run("mount", "-t", "btrfs", "-o", options, self.loop, str(self.top))
        except OSError:
            self.detach()
            raise

    def detach(self) -> None:
        wide.detach(*(loop for _, loop in self.members))

    def unmount(self) -> None:
        run("umount", str(self.top))
        self.detach()

    def btrfs(self, *arguments: str) -> str:
        return run("btrfs", *arguments, str(self.top))

    # --------------------------------------------------------------------------------- origins --

    def fresh(self) -> None:
        """Make one with mkfs.btrfs."""
        one, options, features = self.choice.choice, list[str](), list[str]()
        nodesize = one([4096, 4096, 8192, 16384, 16384, 32768, 65536])
        if self.choice.random() < 0.12:
            features, nodesize = ["mixed-bg"], 4096
        else:
            options += ["-m", one(["single", "dup"]), "-d", one(["single", "single", "dup"])]
        features += [name for name in ("^no-holes", "^skinny-metadata", "^extref")
                     if self.choice.random() < 0.25]  # fmt: skip
        runtime = [name for name in ("^free-space-tree", "quota") if self.choice.random() < 0.15]
        for letter, names in (("-O", features), ("-R", runtime)):
            options += [letter, ",".join(names)] if names else []
        options += ["-n", str(nodesize), "--csum", one(["crc32c", "xxhash", "sha256", "blake2"])]
        run("mkfs.btrfs", "-q", "-f", *options, str(self.image))
        self.log.append(f"mkfs {' '.join(options)}")

    def converted(self) -> None:
        """Make an ext4 with files and convert it."""
        tree = self.folder / "tree"
        tree.mkdir()
        files = Files(tree, self.choice)
        files.count = 1000
        for _ in range(40):
            self.do(self.choice.choice([files.create, files.create, files.mkdir, files.symlink,
                                        files.link, files.write, files.many]))  # fmt: skip
        run("mke2fs", "-q", "-t", "ext4", "-b", "4096", "-d", str(tree), str(self.image))
        shutil.rmtree(tree)
        nodesize = self.choice.choice(["4096", "16384"])
        options = self.choice.choice([[], ["-n"], ["-d"], ["-i"]])
        run("btrfs-convert", "-N", nodesize, *options, str(self.image))
        self.log.append(f"convert {nodesize} {options}")

    # --------------------------------------------------------------------------------- copies --

    def copy(self, kind: str) -> None:
        """Copy the devices as a crash would leave them now, all of one moment."""
        self.count += 1
        target = self.folder / f"copy-{self.count}"
        files = [file for file, _ in self.members]
        if self.others:
            target.mkdir()
        targets = [target / file.name for file in files] if self.others else [target]
        for _ in range(30):
            before = [*map(superblock, files)]
            for file, its in zip(files, targets, strict=True):
                copied(file, its)
            if [*map(superblock, files)] == before:
                self.log.append(f"copy of {kind}")
                self.images.append((kind, str(target)))
                return
        removed(target)
        raise OSError("it changes all the time")

    def crash(self) -> None:
        """Crash: from now on there is what the last copy has."""
        self.unmount()
        last = Path(self.images[-1][1])
        for file, _ in self.members:
            copied(last / file.name if last.is_dir() else last, file)

    def orphans(self) -> None:
        """Copy it while a deleted file is open."""
        with self.files.file().open("rb") as held:
            Path(held.name).unlink()
            self.files.sync()
            self.copy("orphan")

    def logged(self) -> None:
        """Copy it after fsyncs."""
        self.files.sync()
        for _ in range(6):
            self.do(self.choice.choice([self.files.create, self.files.write, self.files.rename,
                                        self.files.fsync, self.files.link, self.files.truncate,
                                        self.files.punch, self.files.append]))  # fmt: skip
        self.do(self.files.fsync)
        self.copy("log")

    def uncleaned(self) -> None:
        """Copy it while subvolumes that are deleted are not freed yet."""
        self.files.subvolume()
        path = self.files.writable[-1]
        for number in range(400):
            self.files.put(self.top / path / f"{number:0100}", 0, b"x" * (number % 3000))
        self.files.sync()
        self.files.calls.snapshot(path, f"{path}-snapshot")
        for one in (path, f"{path}-snapshot"):
            self.files.calls.delete_subvolume(one)
        self.files.writable.remove(path)
        if self.choice.random() < 0.5:
            self.btrfs("filesystem", "sync")
        else:
            self.files.sync()
        self.copy("uncleaned")

    # -------------------------------------------------------------------------------- balances --

    def filters(self) -> list[str]:
        """What of a filesystem is balanced, and into what."""
        one = self.choice.choice
        by_range = f"vrange={one([0, 1, 20, 60]) * MB}..{one([100, 300, 900, 5000]) * MB}"
        on_device = f"drange={one([0, 1, 20, 60]) * MB}..{one([100, 150, 300]) * MB},devid=1"
        return one([
            ["--full-balance"], ["--full-balance"], ["-m"], ["-d"], ["-musage=60"],
            ["-dusage=80", "-musage=80"], ["-dusage=1..70"], [f"-d{by_range}"], [f"-m{by_range}"],
            [f"-m{on_device}"], [f"-d{on_device}"], ["-mlimit=1"], ["-dlimit=1"], ["-f", "-s"],
            ["-mprofiles=single"], ["-mprofiles=dup"], ["-f", "-mconvert=single"],
            ["-f", "-mconvert=single,limit=1"], ["-mconvert=dup"], ["-mconvert=dup,limit=1"],
            ["-dconvert=dup"], ["-dconvert=dup,limit=1"], ["-dconvert=single"],
            ["-f", "-dconvert=dup,soft", "-mconvert=dup,soft"], ["-f", "-sconvert=single"],
            ["-f", "-dconvert=single", "-mconvert=single"],
        ])  # fmt: skip

    def balance(self) -> None:
        filters = self.filters()
        self.log.append(f"balance {' '.join(filters)}")
        self.btrfs("balance", "start", *filters)

    def interrupted(self) -> None:
        """Pause or cancel a balance, or crash in the middle of it, or both."""
        filters = self.filters()
        self.log.append(f"interrupted {' '.join(filters)}")
        command, nowhere = (
            ["btrfs", "balance", "start", *filters, str(self.top)],
            subprocess.DEVNULL,
        )
        processors = os.sched_getaffinity(0)
        os.sched_setaffinity(0, {min(processors)})  # which the balance inherits
        balance = subprocess.Popen(command, stdout=nowhere, stderr=nowhere)
        try:
            if self.choice.random() < 0.8:
                self._copies(balance)
            else:
                time.sleep(self.choice.random() * 0.03)
            if self.choice.random() < 0.8:
                self.do(self.btrfs, "balance", self.choice.choice(["pause", "pause", "cancel"]))
                if self.choice.random() < 0.3:
                    self.do(self.btrfs, "balance", "resume")
        finally:
            balance.wait()
            os.sched_setaffinity(0, processors)

    def _copies(self, balance: subprocess.Popen[bytes]) -> None:
        """Copy it while a balance runs, several times; the first copy with its trees is kept.

        The balance has the processor of this process, and none of its time while that copies.
        """
        before = len(self.images)
        for _ in range(12):
            time.sleep(self.choice.random() * 0.004)
            if balance.poll() is not None:
                return
            os.sched_setscheduler(balance.pid, os.SCHED_IDLE, os.sched_param(0))
            there = self.do(self.copy, "balance")
            os.sched_setscheduler(balance.pid, os.SCHED_OTHER, os.sched_param(0))
            if there and before < len(self.images) - 1:
                removed(Path(self.images.pop(before)[1]))
            files = map(str, wide.files(Path(self.images[-1][1])))
            show = ["btrfs", "inspect-internal", "dump-tree", "-t", "root", *files]
            if there and _RELOCATION in run(*show):
                self.log.append("with trees of a relocation")
                return

    # ---------------------------------------------------------------------------- other events --

    def resize(self) -> None:
        change = self.choice.choice([-100, -60, -30, -4, 40, 100]) * MB
        if change > 0:
            os.truncate(self.image, self.image.stat().st_size + change)
            run("losetup", "--set-capacity", self.loop)
        self.btrfs("filesystem", "resize", f"{change:+}" if change < 0 else "max")
        self.log.append(f"by {change // MB}")

    def shrunk(self) -> None:
        """Cut the device where the filesystem ends."""
        self.btrfs("filesystem", "resize", "-20M")
        self.unmount()
        size = struct.unpack_from("<Q", superblock(self.image), _TOTAL)[0]
        os.truncate(self.image, size)
        self.mount(_ALL)

    def replace(self) -> None:
        """Put another device into its place."""
        new = self.new_file(self.image.stat().st_size + self.choice.choice([0, 40]) * MB)
        loop = wide.attach(new)
        number = (
            run("btrfs", "filesystem", "show", "--raw", str(self.top)).split("devid")[1].split()[0]
        )
        try:
            run("btrfs", "replace", "start", "-B", "-f", number, loop, str(self.top))
        except OSError:
            wide.detach(loop)
            raise
        self._goes_to(new, loop)

    def moved(self) -> None:
        """Add a device and remove the one that it was on."""
        self.do(self.btrfs, "balance", "cancel")
        new = self.new_file(self.image.stat().st_size + 40 * MB)
        loop = wide.attach(new)
        try:
            run("btrfs", "device", "add", "-f", loop, str(self.top))
        except OSError:
            wide.detach(loop)
            raise
        try:
            run("btrfs", "device", "remove", self.loop, str(self.top))
        except OSError:
            run("btrfs", "device", "remove", loop, str(self.top))
            wide.detach(loop)
            raise
        self._goes_to(new, loop)

    def _goes_to(self, image: Path, loop: str) -> None:
        wide.detach(self.loop)
        self.image.unlink()
        self.image, self.loop = image, loop

    def quota(self) -> None:
        """Switch quotas, count, make groups and limits."""
        what = self.choice.choice(["on", "on", "on", "off", "simple"])
        if what == "off":
            self.btrfs("quota", "disable")
            return
        if what == "simple":
            fd = os.open(self.top, os.O_RDONLY)
            try:
                fcntl.ioctl(fd, _QUOTA_CTL, bytearray(struct.pack("<QQ", _SIMPLE_QUOTAS, 0)))
            finally:
                os.close(fd)
        else:
            self.btrfs("quota", "enable")
            self.btrfs("quota", "rescan", "-w")
        self.log.append(f"quotas {what}")
        group = f"1/{self.choice.randrange(3)}"
        self.do(self.btrfs, "qgroup", "create", group)
        self.do(self.btrfs, "qgroup", "assign", "0/5", group)
        self.do(self.btrfs, "qgroup", "limit", self.choice.choice(["100M", "none"]), group)
        self.do(self.btrfs, "qgroup", "limit", "-e", "200M", "0/5")

    def sprout(self) -> None:
        """Make it a seed, look at that, and grow a filesystem of its own from it."""
        self.do(self.btrfs, "balance", "cancel")
        self.unmount()
        try:
            run("btrfstune", "-f", "-S", "1", str(self.image))
            seed = self.folder / f"seed-{self.count}"
            copied(self.image, seed)
            self.images.append(("seed", str(seed)))
        finally:
            self.mount(_ALL)
        new = self.new_file(SIZE)
        loop = wide.attach(new)
        try:
            run("btrfs", "device", "add", "-f", loop, str(self.top))
        except OSError:
            wide.detach(loop)
            raise
        run("mount", "-o", f"remount,{_ALL}", str(self.top))
        self.do(self.files.create)
        run("btrfs", "device", "remove", self.loop, str(self.top))
        self._goes_to(new, loop)

    def tune(self) -> None:
        """What btrfs-progs change in a filesystem that is not mounted."""
        self.unmount()
        try:
            tune = self.choice.choice([["-r"], ["-x"], ["-n"], ["-f", "-u"], ["-f", "-u"],
                                       ["-f", "-m"], ["-f", "-m"]])  # fmt: skip
            if self.choice.random() < 0.25:
                version = self.choice.choice(["v1", "v2"])
                if has_block_group_tree(self.image):  # no kernel mounts it without the other one
                    version = "v1"
                self.do(run, "btrfs", "check", "--clear-space-cache", version, str(self.image))
            else:
                self.do(run, "btrfstune", *tune, str(self.image))
        finally:
            self.mount(_ALL)

    # -------------------------------------------------------------------------------- the life --

    def options(self) -> str:
        chosen = self.choice.sample(_OPTIONS, self.choice.choice([0, 1, 2, 3]))
        skip = ["skip_balance"] * (self.choice.random() < 0.4)
        return ",".join([_ALL, *chosen, *skip])

    def phase(self, work: int) -> None:
        """Mount, work, something happens, unmount."""
        if not (self.do(self.mount, self.options()) or self.do(self.mount, _ALL)):
            return  # it is full
        self.files.look_again()
        for _ in range(work):
            self.do(self.choice.choice(self.files.kinds))
        events = [self.balance] * 3 + [self.interrupted] * 4 + [
            self.resize, self.resize, self.shrunk, self.replace, self.moved, self.quota, self.quota,
            self.sprout, self.tune, self.tune, self.logged, self.logged, self.orphans,
            self.uncleaned, self.files.swap, self.files.defragment, self.files.received,
        ]  # fmt: skip
        for _ in range(self.choice.choice([1, 2, 2])):
            before = len(self.images)
            self.do(self.choice.choice(events))
            self.do(self.choice.choice(self.files.kinds))
            if not self.top.is_mount():  # nobody could mount what came of it
                return
            copied = len(self.images) > before and self.images[-1][0] != "seed"
            if copied and self.choice.random() < 0.5:
                self.log.append("crash")
                self.crash()
                return
        self.unmount()

    def live(self, origin: str | None, several: bool) -> None:
        phases, work = self.choice.choice([2, 3]), self.choice.choice([12, 25, 60])
        if origin:
            copied(Path(origin), self.image)
        elif self.choice.random() < 0.1:
            self.converted()
        else:
            self.fresh()
        for _ in range(phases):
            self.phase(work)
        if several:
            Several(self).live()
        else:
            self.images.append(("end", str(self.image)))


def make(
    folder: str, top: str, seed: str, origin: str | None = None, several: bool = False
) -> dict[str, Any]:
    """Make a filesystem, or go on with one; what was done, and kind and place of images of it.

    `several`: it gets more devices in the end; such an image is a folder.
    """
    place = Path(folder)
    place.mkdir()
    history = History(place, Path(top), seed)
    try:
        history.live(origin, several)
    except Exception:
        subprocess.run(["umount", top], stderr=subprocess.DEVNULL)
        for _, loop in history.members:
            subprocess.run(["losetup", "--detach", loop], stderr=subprocess.DEVNULL)
        raise
    return {"log": history.log, "images": history.images}
