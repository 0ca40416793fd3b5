# SPDX-License-Identifier: GPL-2.0-only
"""The workload of "btrfs: only copy dir index keys when logging a directory" (5.17).

The message's script makes many empty files in a new directory and calls fsync on the directory;
after a sync it deletes some of the files and calls fsync again. What counts is what the two fsyncs
put into the log.
"""

from __future__ import annotations

import os
from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import current_process, get_context
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from btrfs_model.base.counters import counting, current
from btrfs_model.behaviour import Behaviour
from btrfs_model.cost.device import Device
from btrfs_model.cost.writing import log_sync
from btrfs_model.experiments.commits import Message
from btrfs_model.experiments.commits import load as load_message
from btrfs_model.experiments.workloads import (
    Case,
    Figure,
    Group,
    Input,
    Note,
    Outcome,
    Side,
    Step,
    Workload,
    counterparts,
    recorded,
    silent,
)
from btrfs_model.experiments.workloads.charts.evidence import TYPES, Deletes
from btrfs_model.experiments.workloads.knobs import NODESIZE, Knobs
from btrfs_model.experiments.workloads.timed import Timed, yes_no
from btrfs_model.mount.log.state import log_tree_id
from btrfs_model.mount.writable import WritableFilesystem
from btrfs_model.ondisk.keys import ObjectId
from btrfs_model.patches import Patch
from btrfs_model.volume.blocks import ITEM
from btrfs_model.volume.filesystem import Filesystem

if TYPE_CHECKING:
    from matplotlib import figure
    from numpy.typing import NDArray

DIRECTORY: Final = "testdir"
BEFORE = Side("before", "v5.16")
AFTER = Side("after", "v5.16 + log-dir-index-only")
NOW = Side("Linux 6.18", "v6.18")
"""What became of it: 5.18 logs new entries alone, 6.1 does not write delayed entries first."""
COMPARED = (BEFORE, AFTER, NOW)

FSYNCS: Final = (1, 2)
"""The fsync after adding files, and the one after deleting some."""
_LAID_OUT: Final = ("leaves", "nodes")
"""What depends on how many items are inserted at once; the kernels of both sides that were measured
have not log-bulk-insert."""
SMALL: Final = (200, 300, 500)
"""Numbers of files that formulas are found from."""
_NOW_FILES: Final = 10_000
# A log in which a block group was allocated is a commit: the first one of a device that large has
# room for all.
_SMALL_DEVICE: Final = 8 << 30
_LARGE_DEVICE: Final = 128 << 30
_SMALL_FILES: Final = 100_000
_BESIDE: Final = 500_000
"""With so many files the smaller sizes are done in a process of their own, meanwhile."""


def sizes(source: Input) -> dict[int, int]:
    """Return the numbers of files that a replay goes through, and how many of them are deleted."""
    files = source.parameters["files"]
    cases = sorted(
        {(int(one.case["files"]), int(one.case["deletes"])) for one in _message().figures}
    )
    found = {size: deletes for size, deletes in cases if size <= files}
    return {**found, files: found.get(files, max(1, files // 100))}


def _message() -> Message:
    return load_message("log-dir")


def device_bytes(files: int) -> int:
    """Return the size of a device for so many files."""
    return _SMALL_DEVICE if files <= _SMALL_FILES else _LARGE_DEVICE


def build(files: int, nodesize: int = NODESIZE, *, worker: bool = False) -> WritableFilesystem:
    """Do what the script does up to the first fsync; kernels have the `worker`."""
    fs = WritableFilesystem.mkfs(device_bytes(files), nodesize, metadata="dup", ssd=True)
    fs.machine.asynchronous = worker
    fs.sync()
    fs.mkdir(DIRECTORY)
    fs.create_files(DIRECTORY, [f"file_{i}" for i in range(1, files + 1)])
    return fs


def delete(fs: WritableFilesystem, files: int, deletes: int) -> None:
    """Make everything last, which drops the log, and delete files at equal distances."""
    fs.sync()
    fs.unlink_files(DIRECTORY, [f"file_{i}" for i in range(1, files + 1, files // deletes)])


class _Where(NamedTuple):
    """What the filesystems are on, and the size of their tree blocks."""

    device: Device
    nodesize: int

    @classmethod
    def of(cls, knobs: Knobs) -> _Where:
        (device,) = knobs.devices(_message().device)
        return cls(device, knobs.nodesize or NODESIZE)


class _Task(NamedTuple):
    """Two fsyncs on a side."""

    side: Side
    files: int
    deletes: int
    where: _Where

    @property
    def text(self) -> str:
        return f"{self.side.name}: {self.files:,} files, {self.deletes:,} deleted"


class LogDir(Workload):
    """See the module."""

    def build(self, size: Input, knobs: Knobs, step: Step = silent) -> Filesystem:
        """See :meth:`.Workload.build`."""
        return build(size.parameters["files"], knobs.nodesize or NODESIZE)

    def measure(
        self, fs: Filesystem, size: Input, side: Side, knobs: Knobs, step: Step = silent
    ) -> Outcome:
        """Call fsync twice at one size, on the filesystem that was built; it is changed."""
        assert isinstance(fs, WritableFilesystem)
        outcome = Outcome([])
        files = size.parameters["files"]
        _run_size(outcome, fs, side, files, max(1, files // 100), _Where.of(knobs))
        return outcome

    def run(
        self, fs: Filesystem, size: Input, sides: tuple[Side, ...], knobs: Knobs,
        step: Step = silent,
    ) -> Outcome:  # fmt: skip
        """Call fsync twice on each side and at each size; count what is in the logs.

        The filesystem that was built is changed and closed: it serves the first side at the largest
        size. The smaller sizes are done in another process meanwhile, where that is of use.
        """
        assert isinstance(fs, WritableFilesystem)
        outcome, small = Outcome([]), Outcome([])
        where = _Where.of(knobs)
        tasks = [
            _Task(side, files, deletes, where)
            for files, deletes in reversed(sizes(size).items())
            for side in sides
            if side != NOW or files <= _NOW_FILES
        ]
        largest = [task for task in tasks if task.files == tasks[0].files]
        smaller = tasks[len(largest) :]
        if smaller and _is_worth_a_process(largest[0].files):
            with ProcessPoolExecutor(1, get_context("fork")) as pool:
                beside = pool.submit(_run_beside, smaller)
                _run_tasks(outcome, largest, step, fs)
                step("the smaller sizes")
                smaller_ones, work = beside.result()
            outcome.add(smaller_ones)
            for name, count in work.items():
                current().count(name, count)
        else:
            _run_tasks(outcome, tasks, step, fs)
        smallest = [_Task(side, files, files // 100, where) for files in SMALL for side in sides]
        _run_tasks(small, smallest, silent)
        outcome.small = small.figures
        outcome.evidence = Deletes(sizes(size))
        measured = recorded("log-dir")
        rows = [
            row for row in measured["rows"]
            if row["side"] == NOW.name or row["quantity"] not in _LAID_OUT
        ]  # fmt: skip
        outcome.add_measured(counterparts(COMPARED, sides), rows, measured["sources"])
        outcome.figures.sort(key=lambda figure_: figure_.case["files"])
        return outcome

    def draw(self, outcome: Outcome) -> figure.Figure:
        """See :meth:`.Workload.draw`."""
        from btrfs_model.experiments.workloads.charts.log_dir import draw

        return draw(outcome)


def _is_worth_a_process(files: int) -> bool:
    """Whether there is a processor for it, and so much to do; who is a daemon may have none."""
    is_free = len(os.sched_getaffinity(0)) > 1 and not current_process().daemon
    return files >= _BESIDE and is_free


def _run_beside(tasks: list[_Task]) -> tuple[Outcome, dict[str, int]]:
    outcome = Outcome([])
    with counting() as work:
        _run_tasks(outcome, tasks, silent)
    return outcome, dict(work)


def _run_tasks(
    outcome: Outcome, tasks: list[_Task], step: Step, ready: WritableFilesystem | None = None
) -> None:
    """Go through tasks; the first one takes the filesystem that is ready."""
    for task in tasks:
        step(task.text)
        work, ready = ready or build(task.files, task.where.nodesize), None
        _run_size(outcome, work, *task)
        work.close()


def _run_size(
    outcome: Outcome, fs: WritableFilesystem, side: Side, files: int, deletes: int, where: _Where
) -> None:
    fs.behaviour = Behaviour.parse(side.behaviour)
    first, second = (_case(files, deletes, which) for which in FSYNCS)
    _fsync(outcome, fs, side, first, where)
    delete(fs, files, deletes)
    _fsync(outcome, fs, side, second, where)


def _case(files: int, deletes: int, which: int) -> Case:
    return {"files": files, "deletes": deletes, "fsync": which}


def _fsync(outcome: Outcome, fs: WritableFilesystem, side: Side, case: Case, where: _Where) -> None:
    with counting() as work:
        how = fs.fsync(DIRECTORY)
    rows: list[tuple[str, str, int]] = [("commits", "commits", int(how == "commit"))]
    if how == "log":
        rows += _log_rows(fs)
        rows.append(("leaves come to", "leaves", work["log_leaves_entered"]))
        if side != NOW:
            searches = work["btrfs_search_slot"] + work["btrfs_search_slot_for_read"]
            rows.append(("tree searches", "calls", searches))
        waits = log_sync(where.device, _places_of_log(fs), fs.nodesize)
        conditions = {
            "device": where.device.name, "worker": yes_no(fs.machine.asynchronous),
        }  # fmt: skip
        outcome.timed.append(
            Timed(side.name, "time", "ms", case, dict(work), waits, conditions=conditions)
        )
    outcome.figures += [
        Figure(side.name, name, unit, case, modelled=float(count)) for name, unit, count in rows
    ]


def _places_of_log(fs: WritableFilesystem) -> NDArray[np.int64]:
    """Return where the blocks of the log go on the device, all copies."""
    tree = fs.writer.tree(log_tree_id(int(ObjectId.FS_TREE)))
    places = [place for block in tree.blocks() for place in fs.image.copies(block.logical)]
    return np.array(places, np.int64)


def _log_rows(fs: WritableFilesystem) -> list[tuple[str, str, int]]:
    """Items and bytes of the log by type, and its blocks."""
    tree = fs.writer.tree(log_tree_id(int(ObjectId.FS_TREE)))
    columns = tree.scan()
    sizes = columns["size"].astype(np.int64) + ITEM.size
    levels = Counter(block.level for block in tree.blocks())
    rows = [
        ("items", "items", len(sizes)),
        ("bytes", "bytes", int(sizes.sum())),
        ("leaves", "blocks", levels[0]),
        ("nodes", "blocks", levels.total() - levels[0]),
    ]
    for kind in TYPES:
        these = columns["type"] == int(kind)
        rows += [
            (f"items {kind.name}", "items", int(these.sum())),
            (f"bytes {kind.name}", "bytes", int(sizes[these].sum())),
        ]
    return rows


WORKLOAD = LogDir(
    name="log-dir",
    toggles=(Patch.LOG_DIR_INDEX_ONLY,),
    summary=(
        "An fsync of a directory copies its entries into the log. Each entry is in two items of "
        "the directory with the same content: DIR_ITEM, found by the hash of the name, and "
        "DIR_INDEX, in the order of creation. With the change only the DIR_INDEX items are "
        "logged, and a replay makes do with them.",
        "The message's script calls fsync after making the files, and again after a sync and "
        "deleting some of them. The second log has all entries of every leaf from which one was "
        "deleted, and ranges that say what it knows of: what is missing in a range is deleted.",
    ),
    caveats=(
        Note(
            "Since 5.16 the entries of a leaf go into the log at once (log-bulk-insert). The "
            "kernels that were measured are 5.10, which insert one by one: the same items, but "
            "leaves that are filled differently, so these are not set beside; and a second fsync "
            "that takes much longer. "
            "`--kernel-before 'v5.16 - log-bulk-insert'` is what they do.",
            sides=(BEFORE, AFTER),
        ),
        Note(
            "Which DIR_ITEM leaves have no deleted entry depends on how the hash order fell into "
            "leaves while a kernel's worker wrote delayed items; the model has no worker. That "
            "shows where deletions are sparse, from 100,000 files on."
        ),
        Note(
            "Tree searches are those of the model, one for each insertion; kernels search more "
            "than once for the same item."
        ),
        Note(
            "Linux 6.18 is replayed up to 10,000 files, and its tree searches are left out. The "
            "second log has no entries there, only ranges (5.18), which is a later change.",
            sides=(NOW,),
        ),
    ),
    inputs=(Input(None, "", 0.01, {"files": 10_000}), Input(None, "", 1.0, {"files": 1_000_000})),
    least=20,
    headline=("items", "bytes", "leaves", "tree searches", "time"),
    compared=COMPARED,
    groups=(
        Group("First fsync, after adding the files", case={"fsync": 1}),
        Group("Second fsync, after deleting some", case={"fsync": 2}),
    ),
    size="files",
    knobs=("device", "parameters", "nodesize"),
    keeps=False,
)  # fmt: skip
