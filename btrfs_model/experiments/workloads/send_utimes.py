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
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from btrfs_model.behaviour import Behaviour
from btrfs_model.cost.device import Device
from btrfs_model.cost.device import load as load_device
from btrfs_model.cost.machine import Machine
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
)
from btrfs_model.experiments.workloads.knobs import KNOBS, NODESIZE
from btrfs_model.experiments.workloads.timed import Timed
from btrfs_model.limits import Limits
from btrfs_model.mount.writable import WritableFilesystem
from btrfs_model.patches import Patch
from btrfs_model.questions.reads.cold import amounts_of_reads, blocks_after_mount
from btrfs_model.questions.reads.walk import reading, reads_and_work
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

ABLATED = {
    "btrfs_search_slot": "calls",
    "btrfs_get_next_valid_item": "calls",
    "get_inode_info": "calls",
    "__get_cur_name_and_parent": "calls",
    "send_cmd": "calls",
    "stream size": "bytes",
}
"""What the ablation looks at, with its unit: what patches of the series save on this workload."""

_FULL = 60_000
SMALL = (60, 120, 240)
"""Numbers of files that formulas are found from."""
LAG = 32
"""The most delayed items that are queued before the worker begins; chance decides how many. With 0
the trees are those of Linux 6.1 on one CPU, block for block. Linux 6.18 on two CPUs has a few
leaves more: the number is fitted to its leaves of 20,000 and of 60,000 files."""


def scaled(scale: float) -> Input:
    """Return the input of a size relative to the message's largest one, 60,000 files."""
    files = max(6, round(_FULL * scale))
    return Input(None, "snap2", files / _FULL, {"files": files})


INPUTS = (scaled(0.01), scaled(1.0))


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


def _build(source: Input, step: Step) -> Filesystem:
    return build(source.parameters["files"], nodesize=_nodesize(source))


def _nodesize(source: Input) -> int:
    return source.parameters.get("nodesize", NODESIZE)


def run(
    fs: Filesystem,
    source: Input,
    chosen: tuple[Side, ...],
    step: Step,
    machine: Machine,
    *,
    devices: tuple[str, ...] = (),
    parameters: Mapping[str, object] | None = None,
    limits: Limits | None = None,
) -> Outcome:
    """Send the difference on each side at three sizes; then with each patch alone off and on.

    Everything is in memory; on a device, nothing but what a mount leaves there.
    """
    outcome = Outcome([])
    device = load_device(devices[0], parameters) if devices else None
    nodesize = _nodesize(source)
    for files in sizes(source)[:-1]:
        step(f"building {files:,} files")
        with build(files, nodesize=nodesize) as smaller:
            _run_size(outcome, smaller, files, chosen, step, limits, device)
    for files in SMALL:
        with build(files, nodesize=nodesize) as smallest:
            outcome.small += [
                Figure(side.name, name, unit, {"files": files}, modelled=float(count))
                for side in chosen
                for name, unit, count in _rows(_send(smallest, side.behaviour, limits), whole=False)
            ]
    largest = sizes(source)[-1]
    sent = _run_size(outcome, fs, largest, chosen, step, limits, device, whole=True)
    outcome.evidence["sizes"] = sizes(source)
    outcome.evidence["files"] = largest
    if chosen == COMPARED:
        step("each patch alone")
        outcome.evidence["ablation"] = _ablation(outcome, fs, sent, largest, limits)
    pairs = counterparts(COMPARED, chosen)
    measured = recorded("send-utimes")
    outcome.add_measured(pairs, measured["rows"], measured["sources"])
    return outcome


def once(
    fs: Filesystem, source: Input, chosen: tuple[Side, ...], step: Step, machine: Machine, *,
    devices: tuple[str, ...] = (), parameters: Mapping[str, object] | None = None,
    limits: Limits | None = None,
) -> Outcome:  # fmt: skip
    """Send the difference at one size."""
    outcome = Outcome([])
    device = load_device(devices[0], parameters) if devices else None
    files = source.parameters["files"]
    _run_size(outcome, fs, files, chosen, step, limits, device, whole=True)
    return outcome


def _send(fs: Filesystem, behaviour: str, limits: Limits | None) -> SendResult:
    return send(fs, "snap2", "snap1", ["snap1"], behaviour=behaviour, limits=limits)


def _run_size(
    outcome: Outcome, fs: Filesystem, files: int, chosen: tuple[Side, ...], step: Step,
    limits: Limits | None, device: Device | None, *, whole: bool = False,
) -> dict[str, SendResult]:  # fmt: skip
    """Send on each side; with `whole` every function that was called has its figure."""
    results = {}
    for side in chosen:
        step(f"{side.name}: sending {files:,} files")
        results[side.name] = sent = _send(fs, side.behaviour, limits)
        outcome.timed.append(_timed(fs, side, files, sent, limits, device))
        outcome.figures += [
            Figure(side.name, name, unit, {"files": files}, modelled=float(count))
            for name, unit, count in _rows(sent, whole=whole)
        ]
    return results


def _timed(
    fs: Filesystem, side: Side, files: int, sent: SendResult, limits: Limits | None,
    device: Device | None,
) -> Timed:  # fmt: skip
    """Return what takes time: the work, and from a device the reads of tree blocks."""
    if device is None:
        return Timed(side.name, "time", "ms", {"files": files}, sent.amounts)
    behaviour = Behaviour.parse(side.behaviour)
    opened = [fs.subvolume(name) for name in ("snap1", "snap2")]
    request = prepare(
        fs, "snap2", "snap1", ["snap1"], behaviour=behaviour, limits=limits,
        write=lambda data: None,
    )  # fmt: skip
    rows, _ = reads_and_work(request, blocks_after_mount(fs, opened, behaviour), counted=False)
    waits = reading(fs.image, rows, device).waits
    work = {**sent.amounts, **amounts_of_reads(rows)}
    return Timed(side.name, "time", "ms", {"files": files}, work, waits)


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
    outcome: Outcome, fs: Filesystem, sent: dict[str, SendResult], files: int, limits: Limits | None
) -> list[dict[str, Any]]:
    """Send with each patch of the series alone off and alone on; add what it saves."""
    rows = []
    before, after = _totals(sent[BEFORE.name]), _totals(sent[AFTER.name])
    for slug in SERIES:
        off = Side(f"{slug} alone off", f"{AFTER.behaviour} - {slug}")
        on = Side(f"{slug} alone on", f"{BEFORE.behaviour} + {slug}")
        without, alone = (_totals(_send(fs, side.behaviour, limits)) for side in (off, on))
        saved = {
            off.name: {name: without[name] - after[name] for name in ABLATED},
            on.name: {name: before[name] - alone[name] for name in ABLATED},
        }
        rows.append({"toggle": slug, "alone off": saved[off.name], "alone on": saved[on.name]})
        outcome.sides += (off, on)
        outcome.figures += [
            Figure(side, f"saved: {name}", ABLATED[name], {"files": files}, modelled=float(count))
            for side, counts in saved.items()
            for name, count in counts.items()
        ]
    return rows


def _totals(sent: SendResult) -> dict[str, int]:
    return {**dict.fromkeys(ABLATED, 0), **sent.work, "stream size": sent.size}


def draw(outcome: Outcome) -> figure.Figure:
    """Draw the chart of the report."""
    from btrfs_model.experiments.workloads.send_utimes_chart import draw as draw_chart

    return draw_chart(outcome)


WORKLOAD = Workload(
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
    inputs=INPUTS,
    headline=(
        "commands", "command utimes", "stream size", "sender: btrfs_search_slot",
        "sender: btrfs_get_next_valid_item", "time",
    ),
    compared=COMPARED,
    run=run,
    draw=draw,
    groups=(
        Group("Stream: commands, size", ("commands", "command ", "stream size")),
        Group("Time of the send", ("time",)),
        Group("Sender: calls of kernel functions", ("sender: ",)),
    ),
    size="files",
    knobs=tuple(KNOBS),
    scaled=scaled,
    build=_build,
    once=once,
)  # fmt: skip
