# SPDX-License-Identifier: GPL-2.0-only
"""How often each function of btrfs is called by the workloads, in a kernel and in the model."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from btrfs_model.base.counters import NAMES, counting
from btrfs_model.base.errors import KernelMissingError
from btrfs_model.behaviour import Behaviour
from btrfs_model.experiments.replay import build
from btrfs_model.experiments.scenario.load import Scenario
from btrfs_model.experiments.scenario.operations import parse_step
from btrfs_model.experiments.verify.sides import in_the_model, made_by_mkfs, operations_of
from btrfs_model.experiments.workloads.fiemap_shared_build import FILE
from btrfs_model.kernels import gcov
from btrfs_model.kernels.inside import counted
from btrfs_model.kernels.inside.mounts import Place
from btrfs_model.kernels.inside.timed import Sent
from btrfs_model.kernels.uml import Uml
from btrfs_model.mount.writable import WritableFilesystem
from btrfs_model.questions.fiemap.api import Fiemap
from btrfs_model.questions.reads.cold import blocks_after_mount
from btrfs_model.questions.send.ioctl import send
from btrfs_model.volume.filesystem import Filesystem

_SENT = {"send-utimes": ("snap2", "snap1"), "send-truncate": ("snap1", None),
         "send-readahead": ("snap1", None)}  # fmt: skip
_SCALES = {"send-utimes": 0.01, "send-truncate": 0.02, "send-readahead": 0.002,
           "fiemap-shared": 0.01}  # fmt: skip
_FILES = 1000
INLINED = "the compiler put it into its callers"
_SIZE = 1 << 30
_MEMORY = 1 << 30
_Told = tuple[Path, dict[str, int]]
"""The folder of the kernel's counts, and the work of the model."""

EXCEPTIONS = {
    "submit_bio": "of the block layer",
    "btrfs_search_forward": "only those of log_new_dir_dentries() are counted",
    "copy_extent_buffer": "only those of entries that go into a log are counted",
    "get_cur_inode_path": "of later kernels; before, part of who called it",
    "fiemap_fill_next_extent": "of the VFS",
    **{name: "no function: it says what it is" for name in NAMES
       if name.startswith(("data_", "log_", "leaves_", "nodes_", "items_", "subtrees_"))},
}  # fmt: skip
"""What gcov cannot count in ``fs/btrfs``, and why."""

_OWN_SEARCHES = dict.fromkeys(
    ("btrfs_search_slot", "btrfs_search_slot_for_read", "btrfs_next_old_leaf",
     "read_block_for_search"),
    "also of searches of the model where the kernel calls btrfs_search_forward",
)  # fmt: skip
"""Why searches of the fsync of log-dir are some more."""


@dataclass(frozen=True)
class Row:
    """A function in a workload: its calls in the kernel (None: it cannot say) and in the model."""

    workload: str
    function: str
    kernel: int | None
    model: int
    why: str = ""

    @property
    def differs(self) -> bool:
        """Whether the counts differ without an explanation."""
        return not self.why and self.kernel != self.model


class Counting:
    """A kernel that counts, and the model beside it: with the kernel's behaviour or another."""

    def __init__(self, kernel: Uml, behaviour: str = "") -> None:
        self.kernel = kernel
        self.behaviour = Behaviour.parse(behaviour or kernel.preset)

    def rows(self) -> Iterator[Row]:
        """Count the five workloads."""
        for workload in (*_SENT, "fiemap-shared", "log-dir"):
            functions, work = self.counted(workload)
            for name, count in sorted(work.items()):
                calls = functions.get(name)
                why = EXCEPTIONS.get(name) or ("" if calls is not None else INLINED)
                few = calls is not None and abs(count - calls) < _FILES // 20
                if workload == "log-dir" and few:
                    why = why or _OWN_SEARCHES.get(name, "")
                yield Row(workload, name, calls, count, why)

    def counted(self, workload: str) -> tuple[Counter[str], dict[str, int]]:
        """Count a workload at a small scale: the calls in the kernel, the work of the model."""
        of_one = {"fiemap-shared": self._fiemap, "log-dir": self._log}.get(workload)
        kept, work = of_one() if of_one else self._send(workload)
        return gcov.counts(self.kernel.binary, kept).functions, work

    def _send(self, workload: str) -> _Told:
        snapshot, parent = _SENT[workload]
        clones = [parent] if parent else []
        with self._image(workload) as image, Filesystem.open(image) as fs:
            what = Sent(snapshot=snapshot, parent=parent, clones=clones, flags=0, protocol=1)
            kept = self.kernel.new_file()
            with self.kernel.attached(image, read_only=True) as source:
                self.kernel.call(counted.send, self._place(source), what, str(kept))
            work = send(fs, snapshot, parent, clones, behaviour=self.behaviour).work
            return kept, dict(work)

    def _fiemap(self) -> _Told:
        with self._image("fiemap-shared") as image, Filesystem.open(image) as fs:
            kept = self.kernel.new_file()
            with self.kernel.attached(image, read_only=True) as source:
                path = FILE
                self.kernel.call(counted.extents, self._place(source), path, str(kept))
            file = Fiemap(fs, "", FILE, behaviour=self.behaviour)
            known = blocks_after_mount(fs, [fs.subvolume("")], self.behaviour, writable=False)
            fs.image.start_cold(known)
            try:
                with counting() as work:
                    file.run()
            finally:
                fs.image.stop_cold()
            return kept, dict(work)

    def _log(self) -> _Told:
        lines = [["mkfs", []], ["mount", "noatime"], ["mkdir", "testdir"],
                 ["mkfiles", "testdir", "file_", 1, _FILES], ["fsync", "testdir"]]  # fmt: skip
        steps = [parse_step("log-dir", number, line) for number, line in enumerate(lines, 1)]
        scenario = Scenario("log-dir", steps)
        image, kept = self.kernel.images / "log-dir", self.kernel.new_file()
        made_by_mkfs(scenario, image, _SIZE)
        with self.kernel.attached(image, read_only=False) as source:
            place = {**self._place(source), "options": "noatime,commit=3600"}
            self.kernel.call(counted.last, place, operations_of(scenario), str(kept))  # type: ignore[arg-type]
        image.unlink()
        with in_the_model(scenario, self.behaviour, None, _SIZE) as (_, ran):
            pass
        return kept, dict(ran.work)

    def _image(self, workload: str) -> _Built:
        return _Built(self.kernel.images / workload, workload)

    def _place(self, source: str) -> Place:
        return Place(source=source, top=self.kernel.top, options="ro")


class _Built:
    """The image of a workload, as long as it is wanted."""

    def __init__(self, path: Path, workload: str) -> None:
        self.path = path
        with build(workload, _SCALES[workload]) as fs:
            assert isinstance(fs, WritableFilesystem)
            fs.save(path)

    def __enter__(self) -> Path:
        return self.path

    def __exit__(self, *_: object) -> None:
        self.path.unlink()


def count(binary: Path) -> list[Row]:
    """Count the five workloads in a kernel of :func:`btrfs_model.kernels.build.build`."""
    if why := gcov.why_not(binary):
        raise KernelMissingError(why)
    with Uml(binary, memory=_MEMORY) as kernel:
        return list(Counting(kernel).rows())
