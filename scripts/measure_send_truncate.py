#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0-only
"""Measure what the workload `send-truncate` is compared with: ``measured.json`` beside its image.

What kernels sent is taken from the records of the images. The system calls of the receiver are
counted by ``strace -f -c`` around the real ``btrfs receive`` of this machine, which gets the stream
of each side. Receive times are kept as they stand in the file, unless ``--times`` is given: then
they are measured, on a machine that should do nothing else. Needs root, a loop device, mkfs.btrfs,
btrfs and strace. ::

    scripts/measure_send_truncate.py data [--times]
"""

import json
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import btrfs_model as bm
from btrfs_model.workloads import load

RUNS = 5
SIDES = ("before", "before + fix", "after")
# The one kernel on record that sends what 4.16 with the commit would.
SENDER = "6.1.176"


def run(*command: str) -> str:
    """Run a command that must succeed and return what it prints."""
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout


@contextmanager
def fresh_filesystem(folder: Path) -> Iterator[Path]:
    """Mount a new filesystem."""
    image, mount = folder / "target.img", folder / "mnt"
    with image.open("wb") as file:
        file.truncate(3 << 30)
    run("mkfs.btrfs", "-q", "-f", str(image))
    mount.mkdir(exist_ok=True)
    run("mount", "-o", "loop", str(image), str(mount))
    try:
        yield mount
    finally:
        run("umount", str(mount))


def system_calls(stream: Path, folder: Path) -> dict[str, int]:
    """Count the system calls of receiving a stream."""
    table = folder / "strace"
    with fresh_filesystem(folder) as mount:
        run("strace", "-f", "-c", "-o", str(table), "btrfs", "-q", "receive", "-f", str(stream),
            str(mount))  # fmt: skip
    calls = {}
    for line in table.read_text().splitlines():
        words = line.split()
        if len(words) >= 5 and words[3].isdigit() and words[-1] != "total":
            calls[words[-1]] = int(words[3])
    return calls


def receive_time(stream: Path, folder: Path) -> float:
    """Seconds that receiving a stream takes."""
    with fresh_filesystem(folder) as mount:
        start = time.monotonic()
        run("btrfs", "-q", "receive", "-f", str(stream), str(mount))
        return time.monotonic() - start


def sent_by_kernel(data: Path, sample: str) -> dict[str, object]:
    """Return what the kernel `SENDER` sent of a sample: bytes and commands."""
    if sample.startswith("kernel/"):
        case = json.loads((data / sample / "case.json").read_text())
        record = case["sends"][0]["kernels"][SENDER.rpartition(".")[0]]
    else:
        record = json.loads((data / f"{sample}.json").read_text())["sent"][SENDER]
    commands = {name.lower(): count for name, count in record["commands"].items()}
    return {"bytes": record["bytes"], "commands": {"truncate": 0, **commands}}


def main() -> None:
    """Measure and write."""
    data = Path(sys.argv[1])
    target = data / "workloads" / "send-truncate" / "measured.json"
    old = json.loads(target.read_text()) if target.exists() else {"sources": {}, "rows": []}
    rows = [row for row in old["rows"] if row["quantity"] == "receive time"]
    sources = old["sources"]
    workload = load("send-truncate")

    def add(sample: str, side: str, quantity: str, value: float) -> None:
        rows.append({"sample": sample, "side": side, "quantity": quantity, "value": value})

    sides = workload.sides(None, None)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for source in workload.inputs:
            sent = sent_by_kernel(data, source.sample)
            add(source.sample, "after", "stream size", sent["bytes"])
            add(source.sample, "after", "commands", sum(sent["commands"].values()))
            for kind, count in sorted(sent["commands"].items()):
                add(source.sample, "after", f"command {kind}", count)
            streams = {}
            with bm.open(bm.sample(source.sample)) as fs:
                for side in sides:
                    streams[side.name] = folder / f"{side.name}.stream"
                    result = bm.send(fs, source.subvolume, behaviour=side.behaviour)
                    streams[side.name].write_bytes(result.data)
            for side in sides[1:]:
                calls = system_calls(streams[side.name], folder)
                modelled = bm.receiver_calls(bm.read_stream(streams[side.name]))
                for call in sorted({*modelled, "truncate"}):
                    add(source.sample, side.name, f"receiver: {call}", calls.get(call, 0))
            if "--times" in sys.argv and source.scale == 1:
                rows[:] = [row for row in rows if row["quantity"] != "receive time"]
                times = {side.name: [] for side in sides[1:]}
                for _ in range(RUNS):
                    for side, runs in times.items():
                        runs.append(receive_time(streams[side], folder))
                for side, runs in times.items():
                    add(source.sample, side, "receive time", round(statistics.median(runs), 3))
                sources["receive time"] = f"Linux {platform.release()}, median of {RUNS} runs"
    progs = run("btrfs", "--version").split()[1]
    sources["stream"] = f"Linux {SENDER} (User-Mode Linux), sending the same image"
    sources["system calls"] = (
        f"strace -c of btrfs receive (btrfs-progs {progs}) on Linux "
        f"{platform.release().partition('-')[0]}, a kernel with the companion fix; start and end "
        "of the program included, which the model leaves out"
    )
    rows.sort(key=lambda row: (row["sample"], SIDES.index(row["side"]), row["quantity"]))
    lines = ",\n  ".join(json.dumps(row) for row in rows)
    target.write_text(
        f'{{\n "sources": {json.dumps(sources, indent=2)},\n "rows": [\n  {lines}\n ]\n}}\n'
    )


if __name__ == "__main__":
    main()
