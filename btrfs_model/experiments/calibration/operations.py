# SPDX-License-Identifier: GPL-2.0-only
"""What a microbenchmark does: one operation on a small filesystem.

Each says what the model counts of it, and how long a kernel takes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from btrfs_model.base.counters import counting
from btrfs_model.behaviour import Behaviour
from btrfs_model.cost.answer import amounts_of_reads
from btrfs_model.cost.pipe import through_a_pipe
from btrfs_model.cost.receiver import receiver_calls
from btrfs_model.kernels import timings
from btrfs_model.kernels.session import Kernel
from btrfs_model.kernels.timings import Timing
from btrfs_model.mount.writable import WritableFilesystem
from btrfs_model.ondisk.keys import ItemType
from btrfs_model.questions.fiemap.api import fiemap
from btrfs_model.questions.reads.cold import blocks_after_mount
from btrfs_model.questions.reads.walk import reads_and_work
from btrfs_model.questions.send.ioctl import SendResult, prepare, send
from btrfs_model.stream.reader import read_stream
from btrfs_model.volume.filesystem import Filesystem

Build = Callable[[], WritableFilesystem]
Call = tuple[Any, ...]
_LISTED = 1.4
"""A xattr that is listed is looked into, too: so many times an item that is stepped over."""


class Operation(Protocol):
    """What is done with a filesystem, by the model and by a kernel."""

    def prepare(self, folder: Path) -> None:
        """Make what it needs in a folder."""

    def work(self, behaviour: str) -> Mapping[str, float]:
        """Count the work; nothing where there is something in it that no cost is paid for."""

    def time(self, kernel: Kernel, runs: int) -> Timing:
        """Time it on a kernel."""


@dataclass
class Micro:
    """A microbenchmark.

    Attributes
    ----------
    name : str
        Says what is done.
    operation : Operation
        The operation.
    runs : int
        How often it is done each time; the fastest counts.
    """

    name: str
    operation: Operation
    runs: int = 2


class Send:
    """A send, full or from a parent, into a file in memory."""

    def __init__(self, build: Build, snapshot: str = "s1", parent: str | None = None) -> None:
        self.build, self.snapshot, self.parent = build, snapshot, parent

    def prepare(self, folder: Path) -> None:
        """Make the image."""
        self.image = folder / "image"
        with self.build() as fs:
            fs.commit()
            fs.save(self.image)

    def work(self, behaviour: str) -> Mapping[str, float]:
        """Send by the model."""
        with Filesystem.open(self.image) as fs:
            return self._send(fs, behaviour).amounts

    def _send(self, fs: Filesystem, behaviour: str) -> SendResult:
        return send(fs, self.snapshot, self.parent, behaviour=behaviour)

    def time(self, kernel: Kernel, runs: int) -> Timing:
        """Send by a kernel, everything in memory."""
        return timings.send(kernel, self.image, self.snapshot, self.parent, runs=runs)


class ColdSend(Send):
    """The first send after a mount."""

    def work(self, behaviour: str) -> Mapping[str, float]:
        """Send by the model, which reads what is not in memory after a mount."""
        kernel = Behaviour.parse(behaviour)
        with Filesystem.open(self.image) as fs:
            opened = [fs.subvolume(name) for name in (self.snapshot, self.parent) if name]
            cached = blocks_after_mount(fs, opened, kernel, writable=False)
            request = prepare(
                fs, self.snapshot, self.parent, behaviour=kernel, write=lambda data: None
            )
            rows, work = reads_and_work(request, cached, counted=True)
            return {**work, **amounts_of_reads(rows)}

    def time(self, kernel: Kernel, runs: int) -> Timing:
        """Send by a kernel that has nothing in memory."""
        return timings.send(kernel, self.image, self.snapshot, self.parent, runs=runs, cold=True)


class PipedSend(Send):
    """A send through a pipe, as ``btrfs send`` makes it."""

    def work(self, behaviour: str) -> Mapping[str, float]:
        """Send by the model; each command is written to the pipe."""
        return through_a_pipe(super().work(behaviour))

    def time(self, kernel: Kernel, runs: int) -> Timing:
        """Send by a kernel, everything in memory."""
        return timings.send(kernel, self.image, self.snapshot, self.parent, runs=runs, pipe=True)


class Receive(Send):
    """What ``btrfs receive`` does with a full send."""

    def prepare(self, folder: Path) -> None:
        """Make the stream."""
        super().prepare(folder)
        self.stream = folder / "stream"
        with Filesystem.open(self.image) as fs:
            self.stream.write_bytes(self._send(fs, "v6.1").data or b"")
        self.image.unlink()

    def work(self, behaviour: str) -> Mapping[str, float]:
        """Count its system calls."""
        data = self.stream.read_bytes()
        return {**receiver_calls(read_stream(data)), "stream_bytes": len(data)}

    def time(self, kernel: Kernel, runs: int) -> Timing:
        """Receive into fresh filesystems."""
        return timings.receive(kernel, self.stream, runs=runs)


class Fiemap(Send):
    """All extents of a file."""

    def work(self, behaviour: str) -> Mapping[str, float]:
        """Ask the model."""
        with Filesystem.open(self.image) as fs, counting() as work:
            fiemap(fs, "", "f", behaviour=behaviour)
        return dict(work)

    def time(self, kernel: Kernel, runs: int) -> Timing:
        """Ask a kernel, everything in memory."""
        return timings.fiemap(kernel, self.image, "f", runs=runs)


class ColdFiemap(Fiemap):
    """All extents of a file, after a mount."""

    def work(self, behaviour: str) -> Mapping[str, float]:
        """Ask the model, which reads what is not in memory after a mount."""
        kernel = Behaviour.parse(behaviour)
        with Filesystem.open(self.image) as fs:
            cached = blocks_after_mount(fs, [fs.subvolume("")], kernel, writable=False)
            fs.image.start_cold(cached)
            with counting() as work:
                fiemap(fs, "", "f", behaviour=kernel)
            return {**work, **amounts_of_reads(fs.image.stop_cold())}

    def time(self, kernel: Kernel, runs: int) -> Timing:
        """Ask a kernel that has nothing in memory."""
        return timings.fiemap(kernel, self.image, "f", runs=runs, cold=True)


class ListXattrs(Send):
    """The xattrs of a file listed: nothing but a search, and stepping over its items.

    `times`: how often they are listed.
    """

    def __init__(self, build: Build, times: int) -> None:
        super().__init__(build)
        self.times = times

    def work(self, behaviour: str) -> Mapping[str, float]:
        """Count the items of the file, and a search, for each list."""
        with Filesystem.open(self.image) as fs:
            tree = fs.subvolume("").tree
            xattrs = int((tree.scan()["type"] == ItemType.XATTR_ITEM).sum())
            return {
                "btrfs_get_next_valid_item": self.times * (_LISTED * xattrs + 1),
                "btrfs_search_slot": self.times,
                "read_block_for_search": self.times * tree.level,
            }

    def time(self, kernel: Kernel, runs: int) -> Timing:
        """List by a kernel, everything in memory."""
        return timings.list_xattrs(kernel, self.image, "f", self.times, runs=runs)


class LookUp(Send):
    """The path of a directory looked up: nothing but searches, one for each level of it.

    `build` makes directories in each other before anything else, `depth` of them; the path of the
    last one is looked up so many `times`.
    """

    def __init__(self, build: Build, depth: int, times: int) -> None:
        super().__init__(build)
        self.depth, self.times = depth, times

    def work(self, behaviour: str) -> Mapping[str, float]:
        """Count the searches."""
        searches = self.times * self.depth
        with Filesystem.open(self.image) as fs:
            levels = fs.subvolume("").tree.level
        return {"btrfs_search_slot": searches, "read_block_for_search": searches * levels}

    def time(self, kernel: Kernel, runs: int) -> Timing:
        """Look up by a kernel, everything in memory."""
        with Filesystem.open(self.image) as fs:
            inode = fs.subvolume("").root_dir + self.depth
        return timings.look_up(kernel, self.image, inode, self.times, runs=runs)


class Fsync:
    """The fsyncs after other calls on a fresh filesystem."""

    def __init__(self, *calls: Call) -> None:
        self.calls = calls

    def prepare(self, folder: Path) -> None:
        """Nothing to do: filesystems are fresh."""

    def work(self, behaviour: str) -> Mapping[str, float]:
        """Carry the calls out in the model; of the fsyncs count the work.

        Nothing where one of them commits the transaction: no cost is paid for that.
        """
        total: Counter[str] = Counter()
        with WritableFilesystem.mkfs(8 << 30, metadata="dup", ssd=True, behaviour=behaviour) as fs:
            fs.machine.asynchronous = True  # kernels have the thread
            fs.sync()
            for name, *arguments in self.calls:
                with counting() as work:
                    did = getattr(fs, name)(*arguments)
                if name == "fsync":
                    if did == "commit":
                        return {}
                    total.update(work)
        return total

    def time(self, kernel: Kernel, runs: int) -> Timing:
        """Let a kernel do the same; the fsyncs of a run together."""
        taken = timings.steps(kernel, self.calls, runs=runs)
        fsyncs = [one for (name, *_), one in zip(self.calls, taken, strict=True) if name == "fsync"]
        wall, cpu = (
            tuple(map(sum, zip(*(getattr(one, clock) for one in fsyncs), strict=True)))
            for clock in ("wall_ms", "cpu_ms")
        )
        return Timing(wall, cpu)


# ------------------------------------------------------------------------------ filesystems --
