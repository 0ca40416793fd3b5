# SPDX-License-Identifier: GPL-2.0-only
"""The workload of "btrfs: send: cache utimes operations for directories if possible" (6.3).

The message's script makes half of the files in a directory A, takes a snapshot, makes the other
half in a new directory B, moves every file of A to B in the order in which a shell expands
``file_*``, and takes another snapshot. The incremental send between the two is timed before and
after the whole series of patches that the commit is the last of.

The *ablation* sends once more for each patch of the series: with it alone taken away from the
series, and with it alone added to the kernel before.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import TYPE_CHECKING

from btrfs_model.behaviour import Behaviour
from btrfs_model.cost.answer import Cold
from btrfs_model.cost.device import Device
from btrfs_model.experiments.workloads import (
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
from btrfs_model.experiments.workloads.charts.evidence import ABLATED, Series
from btrfs_model.experiments.workloads.knobs import NODESIZE, Knobs
from btrfs_model.experiments.workloads.timed import MEMORY, Timed, yes_no
from btrfs_model.mount.writable import WritableFilesystem
from btrfs_model.patches import Patch
from btrfs_model.questions.reads.cold import blocks_after_mount
from btrfs_model.questions.reads.walk import reads_and_work
from btrfs_model.questions.send.ioctl import SendResult, prepare, send
from btrfs_model.volume.filesystem import Filesystem

if TYPE_CHECKING:
    from matplotlib import figure

SERIES: tuple[Patch, ...] = (
    Patch.SEND_UTIMES_CACHE,
    *(patch for patch in Patch
      if patch.release == "6.3" and patch.startswith("send-") and patch != Patch.SEND_UTIMES_CACHE),
)  # fmt: skip
"""The patches of the series that change work or output, the commit itself first."""

BEFORE = Side("before", "v6.2")
AFTER = Side("after", " + ".join(("v6.2", *SERIES)))
COMPARED = (BEFORE, AFTER)
ALONE = (Patch.SEND_UTIMES_CACHE, Patch.SEND_DIR_CREATED_CACHE)
"""Patches that are timed alone at each size: the commit itself, and what saves the most."""

SMALL = (60, 120, 240)
"""Numbers of files that formulas are found from."""
LAG = 32
"""The most delayed items that are queued before the worker begins; chance decides how many. With 0
the trees are those of Linux 6.1 on one CPU, block for block. Linux 6.18 on two CPUs has a few
leaves more: the number is fitted to its leaves of 20,000 and of 60,000 files."""


def sizes(source: Input) -> tuple[int, ...]:
    """Return the numbers of files that a replay goes through: a third, two thirds and all."""
    files = source.parameters["files"]
    return tuple(round(files * part / 3) for part in (1, 2, 3))


def build(files: int, lag: int = LAG, nodesize: int = NODESIZE) -> Filesystem:
    """Do what the script does, with that many files.

    Parameters
    ----------
    files : int
        In both directories together, as the script counts: the second half begins at the last name
        of the first.
    lag : int
        How late the worker begins that runs delayed items; see :data:`LAG`.
    nodesize : int
        Bytes of a tree block.
    """
    half = files // 2
    fs = WritableFilesystem.mkfs(1 << 30, nodesize)
    # the kernel's worker runs delayed items while the script goes on
    fs.machine.asynchronous, fs.machine.lag = True, lag
    fs.mkdir("A")
    fs.create_files("A", [f"file_{i}" for i in range(1, half + 1)])
    fs.snapshot("", "snap1")
    fs.mkdir("B")
    fs.create_files("B", [f"file_{i}" for i in range(half, files + 1)])
    fs.move_files("A", "B", sorted(f"file_{i}" for i in range(1, half + 1)))
    fs.snapshot("", "snap2")
    fs.commit()
    return fs


class SendUtimes(Workload):
    """See the module."""

    def build(self, size: Input, knobs: Knobs, step: Step = silent) -> Filesystem:
        """See :meth:`.Workload.build`."""
        return build(size.parameters["files"], nodesize=knobs.nodesize or NODESIZE)

    def measure(
        self, fs: Filesystem, size: Input, side: Side, knobs: Knobs, step: Step = silent
    ) -> Outcome:
        """Send the difference at one size."""
        outcome = Outcome([])
        _run_size(outcome, fs, size.parameters["files"], (side,), step, knobs, whole=True)
        return outcome

    def run(
        self, fs: Filesystem, size: Input, sides: tuple[Side, ...], knobs: Knobs,
        step: Step = silent,
    ) -> Outcome:  # fmt: skip
        """Send the difference on each side at three sizes; then with each patch alone off and on.

        Everything is in memory; on a device, nothing but what a mount leaves there.
        """
        outcome = Outcome([])
        nodesize = knobs.nodesize or NODESIZE
        for files in sizes(size)[:-1]:
            step(f"building {files:,} files")
            with build(files, nodesize=nodesize) as smaller:
                _run_size(outcome, smaller, files, sides, step, knobs)
                for slug in ALONE if sides == COMPARED else ():
                    _add_alone(outcome, smaller, slug, files, knobs)
        for files in SMALL:
            with build(files, nodesize=nodesize) as smallest:
                outcome.small += [
                    Figure(side.name, name, unit, {"files": files}, modelled=float(count))
                    for side in sides
                    for name, unit, count in _rows(_send(smallest, side, knobs), whole=False)
                ]
        largest = sizes(size)[-1]
        sent = _run_size(outcome, fs, largest, sides, step, knobs, whole=True)
        ablation = {}
        if sides == COMPARED:
            step("each patch alone")
            ablation = _ablation(outcome, fs, sent, largest, knobs)
        outcome.evidence = Series(sizes(size), ablation)
        measured = recorded("send-utimes")
        outcome.add_measured(counterparts(COMPARED, sides), measured["rows"], measured["sources"])
        return outcome

    def draw(self, outcome: Outcome) -> figure.Figure:
        """See :meth:`.Workload.draw`."""
        from btrfs_model.experiments.workloads.charts.send_utimes import draw

        return draw(outcome)


def _send(fs: Filesystem, side: Side, knobs: Knobs) -> SendResult:
    return send(fs, "snap2", "snap1", ["snap1"], behaviour=side.behaviour, limits=knobs.limits)


def _run_size(
    outcome: Outcome, fs: Filesystem, files: int, chosen: tuple[Side, ...], step: Step,
    knobs: Knobs, *, whole: bool = False,
) -> dict[str, SendResult]:  # fmt: skip
    """Send on each side; with `whole` every function that was called has its figure."""
    results = {}
    for side in chosen:
        step(f"{side.name}: sending {files:,} files")
        results[side.name] = sent = _send(fs, side, knobs)
        outcome.timed.append(_timed(fs, side, files, sent, knobs))
        outcome.figures += [
            Figure(side.name, name, unit, {"files": files}, modelled=float(count))
            for name, unit, count in _rows(sent, whole=whole)
        ]
    return results


def _timed(fs: Filesystem, side: Side, files: int, sent: SendResult, knobs: Knobs) -> Timed:
    """Return what takes time: the work, and from a device the reads of tree blocks."""
    device: Device | None
    (device,) = knobs.devices() or (None,)
    conditions = {"device": device.name if device else MEMORY, "pipe": yes_no(False)}
    if device is None:
        return Timed(side.name, "time", "ms", {"files": files}, sent.amounts, conditions=conditions)
    behaviour = Behaviour.parse(side.behaviour)
    opened = [fs.subvolume(name) for name in ("snap1", "snap2")]
    request = prepare(
        fs, "snap2", "snap1", ["snap1"], behaviour=behaviour, limits=knobs.limits,
        write=lambda data: None,
    )  # fmt: skip
    rows, _ = reads_and_work(request, blocks_after_mount(fs, opened, behaviour), counted=False)
    cold = Cold.of(fs.image, rows)
    return Timed(side.name, "time", "ms", {"files": files}, {**sent.amounts, **cold.amounts},
                 cold.on(device).waits, conditions=conditions)  # fmt: skip


def _rows(sent: SendResult, *, whole: bool) -> list[tuple[str, str, int]]:
    kinds = Counter({"utimes": 0, **sent.commands})
    work = {name: count for name, count in sent.work.items() if whole or name in ABLATED}
    return [
        ("commands", "commands", kinds.total()),
        *((f"command {kind}", "commands", count) for kind, count in sorted(kinds.items())),
        ("stream size", "bytes", sent.size),
        *((f"sender: {name}", "calls", count) for name, count in sorted(work.items())),
    ]


def _ablation(
    outcome: Outcome, fs: Filesystem, sent: dict[str, SendResult], files: int, knobs: Knobs
) -> dict[str, dict[str, int]]:
    """Send with each patch of the series alone off and alone on; add what it saves.

    What is done more without each patch is returned, by quantity.
    """
    found = {}
    before, after = _totals(sent[BEFORE.name]), _totals(sent[AFTER.name])
    for slug in SERIES:
        off = Side(f"{slug} alone off", f"{AFTER.behaviour} - {slug}")
        on = Side(f"{slug} alone on", _with(slug))
        without = _totals(_send(fs, off, knobs))
        alone = _totals(_add_alone(outcome, fs, slug, files, knobs))
        saved = {
            off.name: {name: without[name] - after[name] for name in ABLATED},
            on.name: {name: before[name] - alone[name] for name in ABLATED},
        }
        found[str(slug)] = saved[off.name]
        outcome.sides += (off, on)
        outcome.figures += [
            Figure(side, f"saved: {name}", ABLATED[name], {"files": files}, modelled=float(count))
            for side, counts in saved.items()
            for name, count in counts.items()
        ]
    return found


def _with(slug: Patch) -> str:
    """Return the kernel before with one patch of the series."""
    return f"{BEFORE.behaviour} + {slug}"


def _add_alone(
    outcome: Outcome, fs: Filesystem, slug: Patch, files: int, knobs: Knobs
) -> SendResult:
    """Send with one patch of the series alone, and add the time."""
    side = Side(f"{slug} alone on", _with(slug))
    sent = _send(fs, side, knobs)
    timed = _timed(fs, side, files, sent, knobs)
    outcome.timed.append(replace(timed, beside=False, alone=str(slug)))
    return sent


def _totals(sent: SendResult) -> dict[str, int]:
    return {**dict.fromkeys(ABLATED, 0), **sent.work, "stream size": sent.size}


WORKLOAD = SendUtimes(
    name="send-utimes",
    toggles=SERIES,
    summary=(
        "Whenever an entry was added to a directory or removed from it, send told the receiver to "
        "set the times of that directory: once for each entry. With the change the directories "
        "are kept in a cache of 64, and the times of each are set once, when it leaves the cache "
        "or at the end.",
        "The commit is the last of a series of 18, which together make an incremental send of "
        "many moved files several times faster. Most of what they save is work: before them, "
        "each file that left the directory made send look through all entries that were still "
        "in it, so the work grew with the square of the number of files.",
    ),
    caveats=(
        Note(
            "The message's times are those of the whole series. The ablation tells the patches "
            "apart: what each saves when it alone is taken away from the series, and when it "
            "alone is added to the kernel before.",
            sides=COMPARED,
        ),
        Note(
            "The kernels that were measured differ from the two sides in other patches too; only "
            "quantities that do not depend on those, nor on how the trees are laid out, are set "
            "beside.",
            measured=("stream", "calls"),
        ),
    ),
    inputs=(
        Input(None, "snap2", 0.01, {"files": 600}),
        Input(None, "snap2", 1.0, {"files": 60_000}),
    ),
    least=6,
    headline=(
        "commands", "command utimes", "stream size", "sender: btrfs_search_slot",
        "sender: btrfs_get_next_valid_item", "time",
    ),
    compared=COMPARED,
    groups=(
        Group("Stream: commands, size", ("commands", "command ", "stream size")),
        Group("Time of the send", ("time",)),
        Group("Sender: calls of kernel functions", ("sender: ",)),
    ),
    size="files",
)  # fmt: skip
