# SPDX-License-Identifier: GPL-2.0-only
"""The workload of "Btrfs: send, do not issue unnecessary truncate operations" (4.17).

The message's script starts ten workers, each of which writes 5000 bytes to ``file_1`` ..
``file_20000``. The names do not depend on the worker: 20,000 files result. A snapshot of them is
sent into a file, and the time to receive it is taken three times: without the change, without it
but with its companion ("Btrfs: skip writeback of last page when truncating file to same size") on
the receiving side, and with it but without the companion.
"""

from __future__ import annotations

import tempfile
from collections import Counter
from collections.abc import Iterable
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

from btrfs_model.behaviour import Behaviour
from btrfs_model.cost.device import Device
from btrfs_model.cost.device import load as load_device
from btrfs_model.cost.receiver import LAST_PAGE_WAIT, receiver_calls
from btrfs_model.cost.writing import page_write
from btrfs_model.experiments.commits import load as load_message
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
from btrfs_model.experiments.workloads.charts.evidence import Strips
from btrfs_model.experiments.workloads.knobs import NODESIZE, NOT_TURNED, Knobs
from btrfs_model.experiments.workloads.timed import Timed, yes_no
from btrfs_model.experiments.workloads.written_in_turn import write_files_in_turn
from btrfs_model.mount.writable import WritableFilesystem
from btrfs_model.patches import Patch
from btrfs_model.questions.send.ioctl import SendResult, send
from btrfs_model.stream.reader import Command, read_stream
from btrfs_model.volume.filesystem import Filesystem

if TYPE_CHECKING:
    from matplotlib import figure

BEFORE = Side("before", "v4.16")
COMPANION = Side("before + fix", "v4.16 + truncate-same-size")
AFTER = Side("after", "v4.16 + send-skip-truncate")
COMPARED = (BEFORE, COMPANION, AFTER)

SMALL = (20, 40, 80)
"""Numbers of files that formulas are found from."""


def build(source: Input, knobs: Knobs = NOT_TURNED) -> Filesystem:
    """Do what the message's script does: all of its workers write the same files."""
    files = source.parameters["files"]
    # twice what data and metadata take, and what a small device needs at least
    fs = WritableFilesystem.mkfs(
        max(256 << 20, files * 40_000), knobs.nodesize or NODESIZE, metadata="single"
    )  # fmt: skip
    names = [f"file_{i}" for i in range(1, files + 1)]
    write_files_in_turn(fs, "", names, b"\xff" * source.parameters["file_bytes"])
    fs.snapshot("", "snap1")
    fs.commit()
    return fs


class SendTruncate(Workload):
    """See the module."""

    def build(self, size: Input, knobs: Knobs, step: Step = silent) -> Filesystem:
        """See :meth:`.Workload.build`."""
        return build(size, knobs)

    def measure(
        self, fs: Filesystem, size: Input, side: Side, knobs: Knobs, step: Step = silent
    ) -> Outcome:
        """Send the snapshot, and receive it, at one size."""
        with tempfile.TemporaryDirectory() as folder:
            stream = Path(folder) / "stream"
            sent, calls = _send_and_receive(fs, size.subvolume, side, stream, knobs)
        (device,) = knobs.devices(load_message("send-truncate").device)
        timed = _timed(side, calls, device)
        return Outcome(_figures(side, sent, calls), timed=[timed])

    def run(
        self, fs: Filesystem, size: Input, sides: tuple[Side, ...], knobs: Knobs,
        step: Step = silent,
    ) -> Outcome:  # fmt: skip
        """Send the snapshot on each side; count what the sender and the receiver do."""
        outcome = Outcome([])
        message = load_message("send-truncate")
        (device,) = knobs.devices(message.device)
        others = () if knobs.device else tuple(map(load_device, message.devices))
        strips: dict[str, list[tuple[str, int]]] = {}
        first: list[Figure] = []
        with tempfile.TemporaryDirectory() as folder:
            stream = Path(folder) / "stream"
            for side in sides:
                step(f"{side.name}: sending and receiving")
                sent, calls = _send_and_receive(fs, size.subvolume, side, stream, knobs)
                outcome.timed.append(_timed(side, calls, device, others))
                figures = _figures(side, sent, calls)
                first = first or figures
                outcome.figures += figures + _savings(side, first, figures)
                strips[side.name] = one_file(read_stream(stream))
            for files in SMALL:
                small = replace(size, parameters={**size.parameters, "files": files})
                with build(small, knobs) as smallest:
                    for side in sides:
                        found = _figures(
                            side, *_send_and_receive(smallest, size.subvolume, side, stream, knobs)
                        )
                        outcome.small += [replace(one, case={"files": files}) for one in found]
        outcome.evidence = Strips(size.parameters["files"], strips)
        if size.sample is not None:
            _add_measured(outcome, counterparts(COMPARED, sides), size.sample)
        return outcome

    def draw(self, outcome: Outcome) -> figure.Figure:
        """See :meth:`.Workload.draw`."""
        from btrfs_model.experiments.workloads.charts.send_truncate import draw

        return draw(outcome)


def _send_and_receive(
    fs: Filesystem, subvolume: str, side: Side, stream: Path, knobs: Knobs
) -> tuple[SendResult, Counter[str]]:
    """Send into a file; count what the receiver of that stream calls."""
    with stream.open("wb") as file:
        sent = send(fs, subvolume, behaviour=side.behaviour, limits=knobs.limits, to=file)
    fixed = Patch.TRUNCATE_SAME_SIZE in Behaviour.parse(side.behaviour)
    return sent, receiver_calls(read_stream(stream), truncate_same_size=fixed)


def one_file(commands: Iterable[Command]) -> list[tuple[str, int]]:
    """Return the commands (name, bytes) for the first regular file of a stream."""
    strip: list[tuple[str, int]] = []
    for command, following in pairwise(commands):
        if command.name == "mkfile" and strip:
            break
        if command.name == "mkfile" or strip:
            strip.append((command.name, following.offset - command.offset))
    return strip


def _timed(
    side: Side, calls: Counter[str], device: Device, others: tuple[Device, ...] = ()
) -> Timed:
    """Return the receiver's work: its calls, and the pages that it waits for."""
    waits, *elsewhere = (calls[LAST_PAGE_WAIT] * page_write(one) for one in (device, *others))
    return Timed(
        side.name, "receive time", "s", {}, dict(calls), waits,
        conditions={"device": device.name, "pipe": yes_no(False)},
        elsewhere={one.name: wait for one, wait in zip(others, elsewhere, strict=True)},
    )  # fmt: skip


def _figures(side: Side, sent: SendResult, calls: Counter[str]) -> list[Figure]:
    """Figures of one side: commands, bytes, system calls of the receiver, work of the sender."""
    waits = calls.pop(LAST_PAGE_WAIT, 0)
    kinds = Counter({"truncate": 0, **sent.commands})
    calls["truncate"] += 0
    rows = [
        ("commands", "commands", kinds.total()),
        *((f"command {kind}", "commands", count) for kind, count in sorted(kinds.items())),
        ("stream size", "bytes", sent.size),
        ("receiver: system calls", "calls", calls.total()),
        *((f"receiver: {name}", "calls", count) for name, count in sorted(calls.items())),
        ("receiver: waits for the last page", "waits", waits),
        *((f"sender: {name}", "calls", count) for name, count in sorted(sent.work.items())),
    ]
    return [Figure(side.name, name, unit, modelled=float(count)) for name, unit, count in rows]


def _savings(side: Side, first: list[Figure], figures: list[Figure]) -> list[Figure]:
    """Compute what a side saves against the first."""
    wanted = {
        "command truncate": "saved: truncate commands",
        "stream size": "saved: stream size",
        "receiver: system calls": "saved: system calls",
    }
    before = {figure_.quantity: figure_.modelled or 0.0 for figure_ in first}
    return [
        Figure(
            side.name,
            wanted[figure_.quantity],
            figure_.unit,
            modelled=before[figure_.quantity] - (figure_.modelled or 0.0),
        )
        for figure_ in figures
        if figure_.quantity in wanted and figures is not first
    ]


def _add_measured(outcome: Outcome, pairs: list[tuple[Side, Side]], sample: str) -> None:
    """Set what real kernels and the real receiver did on the same image beside the figures."""
    measured = recorded("send-truncate")
    records = [
        {name: value for name, value in row.items() if name != "sample"}
        for row in measured["rows"]
        if row["sample"] == sample
    ]
    outcome.add_measured(pairs, records, measured["sources"][sample])


WORKLOAD = SendTruncate(
    name="send-truncate",
    toggles=(Patch.SEND_SKIP_TRUNCATE, Patch.TRUNCATE_SAME_SIZE),
    summary=(
        "When send was done with a regular file, it always told the receiver to truncate it to "
        "its size, although the writes before had given it that size already. With the change it "
        "does so only where it is needed: when the file became smaller, or its last write ends "
        "before its size.",
        "The receiver is spared a system call for each file. Before the companion fix that call "
        "was dear: a truncate to the same size wrote the last page back and waited for the disk "
        "whenever the size was not a multiple of the sector size, and 5000 is not.",
    ),
    caveats=(
        Note(
            "The script's ten workers write to the same names, file_1 to file_20000: its full "
            "scale is 20,000 files."
        ),
        Note(
            "The calls of kernel functions were measured on 5.10.46, which looks up the state of "
            "each new file once more than 4.16 does, and its capabilities, but not the size of "
            "what might be cloned (the toggles send-orphanize-first, send-caps-last, "
            "send-clone-parts); with these toggles added, the model's calls are the measured ones.",
            sides=(AFTER,),
            measured=("calls of kernel functions",),
        ),
        Note(
            "The message names no device. A page that a truncate waits for is a write of 4 KiB to "
            "the SSD that stands for it; what the kernel's workers do for it, and what is written "
            "back meanwhile, is not in the time.",
            device=True,
        ),
        Note(
            "Reported and measured times are of different machines and devices; the ratios "
            "between sides are what can be compared.",
            measured=("receive time",),
        ),
    ),
    inputs=(
        Input("kernel/counts/W2/N500", "snap1", 0.025, {"files": 500, "file_bytes": 5000}),
        Input("workloads/send-truncate/full", "snap1", 1.0, {"files": 20_000, "file_bytes": 5000}),
    ),
    headline=(
        "commands", "command truncate", "stream size", "receiver: system calls",
        "receiver: truncate", "receiver: waits for the last page", "sender: btrfs_search_slot",
        "receive time",
    ),
    compared=COMPARED,
    size="files",
    bytes_each=12 << 10,
    groups=(
        Group("Stream: commands, size", ("commands", "command ", "stream size")),
        Group("Receiver: system calls, times", ("receiver: ", "receive time")),
        Group("Saved against the first side", ("saved: ",)),
        Group("Sender: calls of kernel functions", ("sender: ",)),
    ),
)  # fmt: skip
