# SPDX-License-Identifier: GPL-2.0-only
"""The workload of "btrfs: improve btree readahead for full send operations" (5.13).

The message's script lets four jobs make 500,000 files of 2000 bytes, whose data lies in the leaves
of the tree, takes a snapshot, adds a quarter more, overwrites every fiftieth file and takes another
snapshot. After a new mount the first snapshot is sent: 217 seconds before the change, 205 after it,
on "an average, consumer grade, spinning disk".
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from btrfs_model.base.counters import counting
from btrfs_model.base.errors import BtrfsModelError
from btrfs_model.behaviour import Behaviour
from btrfs_model.cost.answer import Cold
from btrfs_model.cost.device import Device, Disk, ends, load
from btrfs_model.cost.machine import chosen
from btrfs_model.cost.simulate import Totals
from btrfs_model.experiments.workloads import (
    Figure,
    Group,
    Input,
    Note,
    Outcome,
    Side,
    Step,
    Workload,
    silent,
)
from btrfs_model.experiments.workloads.charts.evidence import Readings
from btrfs_model.experiments.workloads.knobs import NODESIZE, NOT_TURNED, Knobs
from btrfs_model.experiments.workloads.side_by_side import side_by_side
from btrfs_model.experiments.workloads.timed import Timed, yes_no
from btrfs_model.experiments.workloads.written_in_turn import (
    files_before_flush,
    run_before_delalloc,
)
from btrfs_model.mount.writable import WritableFilesystem
from btrfs_model.patches import Patch
from btrfs_model.questions.reads.cold import blocks_after_mount
from btrfs_model.questions.reads.walk import read_table, reads_and_work, with_times
from btrfs_model.questions.send.ioctl import amounts_of, prepare

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib import figure
    from numpy.typing import NDArray

    from btrfs_model.volume.filesystem import Filesystem

BEFORE = Side("before", "v5.13 - send-reada-always")
AFTER = Side("after", "v5.13")
COMPARED = (BEFORE, AFTER)

DISK = "deskstar-7k500"
DEVICES = (DISK, "samsung-850-evo", "samsung-970-evo", "memory")
"""What the snapshot is sent from: names of :func:`btrfs_model.cost.device.names`. The first stands
for the device of the message, and its reads are drawn."""

_FILES, _JOBS = 500_000, 4
_SCRIPT = {"jobs": _JOBS, "file_bytes": 2000}
_DEVICE_BYTES = 6 << 30
_COMMIT_INTERVAL, _FILE_TIME = 30_000_000, 113
"""Microseconds of simulated time: between two commits that the script does not ask for, as kernels
have it, and that the jobs take for a file. It took 70.7 seconds to make the kernel's image of
625,000 files (further runs 71 to 75)."""
_ROUND = (80, 720)
"""While the jobs go on the kernel writes their data back: first when there is no more room for
reservations (:func:`files_before_flush`), then ahead of that, after so many files, by chance. Linux
6.18 waits some 10 ms between two rounds of it, and what is made meanwhile makes up the next."""


def build(source: Input, knobs: Knobs = NOT_TURNED, step: Step = silent) -> WritableFilesystem:
    """Do what the message's script does, in memory."""
    files = source.parameters["files"]
    # one copy of metadata: a send reads only one, and memory has to hold them all
    fs = WritableFilesystem.mkfs(
        max(_DEVICE_BYTES, files * 20_000),
        metadata="single",
        nodesize=knobs.nodesize or NODESIZE,
    )
    step(f"making {files:,} files")
    jobs = source.parameters["jobs"]
    data = b"\xab" * source.parameters["file_bytes"]
    _add_files(fs, files, 0, jobs, data)
    fs.sync()
    fs.snapshot("", "snap1")
    step(f"making {files // 4:,} files more")
    _add_files(fs, files // 4, files, jobs, data)
    for number in range(1, files + 1, 50):
        fs.write(f"file_{number}", 0, b"\xcd" * 20)
    fs.snapshot("", "snap2")
    fs.commit()
    return fs


def _add_files(
    fs: WritableFilesystem, total: int, first: int, jobs: int, data: bytes
) -> None:  # fmt: skip
    """Let the jobs make files: each a range of numbers."""
    chance = np.random.default_rng(first)
    numbers, due = side_by_side(_shares(total, jobs), chance)
    names = [f"file_{first + 1 + number}" for number in numbers.tolist()]
    order = np.argsort(due, kind="stable")
    due = due[order]
    inos = np.zeros(len(names), np.uint64)
    made = written = 0
    for batch in _batches(len(names), files_before_flush(fs), chance, fresh=not first):
        inos[made : made + batch] = fs.create_files("", names[made : made + batch])
        made += batch
        end = len(names) if made == len(names) else int(np.searchsorted(due, made))
        run_before_delalloc(fs)
        fs.fill_files("", inos[order[written:end]], data)
        written = end
        if _commits(made) != _commits(made - batch):
            fs.commit()


def _commits(made: int) -> int:
    """Return how many commits have come by the time that so many files are made."""
    return made * _FILE_TIME // _COMMIT_INTERVAL


def _shares(total: int, jobs: int) -> list[int]:
    """Return how many files each job makes: the last one what is left over, too."""
    return [total // jobs] * (jobs - 1) + [total - total // jobs * (jobs - 1)]


def _batches(count: int, most: int, chance: np.random.Generator, *, fresh: bool) -> Iterator[int]:
    """Split files into rounds of writeback; the first of a fresh filesystem is the largest."""
    batch = most if fresh else 0
    while count:
        batch = min(count, batch or int(_between(_ROUND, chance.random())), most)
        yield batch
        count -= batch
        batch = 0


def _between(ends: tuple[float, float], share: Any) -> Any:
    """Go a share of the way from one number to another, in steps of equal ratio."""
    return ends[0] * (ends[1] / ends[0]) ** share


class SendReadahead(Workload):
    """See the module."""

    def scaled(self, scale: float) -> Input:
        """See :meth:`.Workload.scaled`."""
        if _FILES * scale < _JOBS:
            raise BtrfsModelError(f"{self.name}: at scale {scale:g} the jobs have nothing to do")
        return super().scaled(scale)

    def build(self, size: Input, knobs: Knobs, step: Step = silent) -> WritableFilesystem:
        """See :meth:`.Workload.build`."""
        return build(size, knobs, step)

    def measure(
        self, fs: Filesystem, size: Input, side: Side, knobs: Knobs, step: Step = silent
    ) -> Outcome:
        """Send the snapshot on one side."""
        return self.run(fs, size, (side,), knobs, step)

    def run(
        self, fs: Filesystem, size: Input, sides: tuple[Side, ...], knobs: Knobs,
        step: Step = silent,
    ) -> Outcome:  # fmt: skip
        """Send the snapshot on each side from each device: which blocks are read, and how long."""
        outcome = Outcome([])
        tables: dict[str, pd.DataFrame] = {}
        devices = knobs.devices(*DEVICES)
        besides: dict[frozenset[Patch], Counter[str]] = {}
        for side in sides:
            step(f"{side.name}: sending")
            rows, done = _walk(fs, size.subvolume, side, knobs, besides)
            cold = Cold.of(fs.image, rows)
            work = {**amounts_of(done, done["stream_bytes"]), **cold.amounts}
            for device in devices:
                step(f"{side.name}: reading from {device.name}")
                on = cold.on(device)
                # a parameter that is set says what the device is
                others = () if knobs.parameters else ends(device.name)
                timed = Timed(
                    side.name, "send time", "s", {"device": device.name}, work, on.waits,
                    tuple(cold.on(load(device.name, other)).waits for other in others),
                    conditions={"device": device.name, "pipe": yes_no(False)},
                    beside=device == devices[0] and _is_disk(device),
                )  # fmt: skip
                outcome.timed.append(timed)
                time = timed.on(chosen(knobs.machine))
                think = on.think(time.computed if time else 0.0)
                if device == devices[0]:
                    table = with_times(read_table(fs.image, rows), on, think)
                    tables[side.name] = table
                    table.attrs["seconds"] = time.seconds if time else table.attrs["waited"]
                    outcome.figures += _reads(side, table)
                outcome.figures += _device(side, device, on.run(think)[1])
        names = tuple(device.name for device in devices)
        outcome.evidence = Readings(size.parameters["files"], names, tables)
        return outcome

    def draw(self, outcome: Outcome) -> figure.Figure:
        """See :meth:`.Workload.draw`."""
        from btrfs_model.experiments.workloads.charts.send_readahead import draw

        return draw(outcome)


def _walk(
    fs: Filesystem, subvolume: str, side: Side, knobs: Knobs,
    besides: dict[frozenset[Patch], Counter[str]],
) -> tuple[NDArray[Any], Counter[str]]:  # fmt: skip
    """Send on a side: which blocks are read, and the work.

    Sides that differ in what they read ahead differ in the walk over the tree alone: of those
    the rest is counted once, and kept in `besides`.
    """
    kernel = Behaviour.parse(side.behaviour)
    cached = blocks_after_mount(fs, [fs.subvolume(subvolume)], kernel)
    request = prepare(fs, subvolume, behaviour=kernel, limits=knobs.limits, write=lambda data: None)
    with counting() as walk:
        rows, _ = reads_and_work(request, cached, counted=False)
    alike = frozenset(kernel) - {Patch.SEND_READA, Patch.SEND_READA_ALWAYS}
    if alike not in besides:
        besides[alike] = Counter(reads_and_work(request, cached, counted=True)[1])
        besides[alike].subtract(walk)
    return rows, Counter(walk) + besides[alike]


def _reads(side: Side, table: pd.DataFrame) -> list[Figure]:
    """Count the blocks of one side: on demand, ahead, in vain."""
    ahead = (table["kind"] == "ahead").to_numpy()
    rows = [
        ("reads: all", len(table)),
        ("reads: on demand", int((~ahead).sum())),
        ("reads: ahead", int(ahead.sum())),
        ("reads: ahead and never used", int((ahead & ~table["used"].to_numpy()).sum())),
    ]
    return [Figure(side.name, name, "blocks", modelled=float(count)) for name, count in rows]


def _device(side: Side, device: Device, totals: Totals) -> list[Figure]:
    """Say what the reads of one side came to on one device."""
    rows = [
        ("waiting", "s", totals.waited / 1e9),
        ("requests", "requests", totals.requests),
    ]
    if _is_disk(device):
        rows.append(("seeks", "seeks", totals.seeks))
    return [
        Figure(side.name, name, unit, {"device": device.name}, modelled=float(value))
        for name, unit, value in rows
    ]


def _is_disk(device: Device) -> bool:
    """Whether a device is what the message measured on, a spinning disk."""
    return isinstance(device.model, Disk)


WORKLOAD = SendReadahead(
    name="send-readahead",
    toggles=(Patch.SEND_READA_ALWAYS, Patch.SEND_READA),
    summary=(
        "A full send walks over the whole tree of a snapshot, leaf after leaf. The readahead that "
        "searches have (READA_FORWARD) takes only leaves within 64 KiB of the one that is read, "
        "only where that one is not in memory, and never a node. With the change send asks for "
        "the next leaves wherever they lie, and for the next node.",
        "So the disk has more requests to put in order, and works on while send does. How much "
        "that is worth depends on how the leaves are scattered and on what the disk does on its "
        "own account.",
    ),
    caveats=(
        Note(
            "The message does not name its disk. The model's is a 7200 rpm SATA disk whose data "
            "sheet it keeps to; its reading ahead on its own (64 KiB, as in the literature) "
            "decides more about both times than anything else, and no data sheet tells it.",
            device=True,
        ),
        Note(
            "Leaves lie where the four jobs and the commits of their transactions let them: "
            "another run of the script scatters them otherwise. In a filesystem that the model "
            "builds, how long the jobs take for a file, and a job has a CPU, was measured in runs "
            "of Linux 6.18."
        ),
    ),
    inputs=(
        Input("kernel/reada/r5k", "snap1", 0.01, {"files": 5000, **_SCRIPT}),
        Input(None, "snap1", 1.0, {"files": _FILES, **_SCRIPT}),
    ),
    headline=(
        "reads: on demand", "reads: ahead", "reads: ahead and never used", "send time", "waiting",
        "requests", "seeks",
    ),
    compared=COMPARED,
    groups=(
        Group("Reads of tree blocks", ("reads: ",)),
        Group("Time to send, from a device", ("send time",)),
        Group("Waiting for the device", ("waiting",)),
        Group("Requests to the device, after merging", ("requests",)),
        Group("Movements of its arm", ("seeks",)),
    ),
)  # fmt: skip
