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
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from measured import taken

import btrfs_model as bm
from btrfs_model.experiments.workloads import load

RUNS = 5
SIDES = ("before", "before + fix", "after")
# Functions of which some calls are inlined, and so were not counted.
INLINED = {"btrfs_next_old_item"}


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


def sent_by_kernel(data: Path, sample: str) -> tuple[str, dict[str, object], dict[str, int]]:
    """Return a kernel that sent a sample, what it sent, and how often it called its functions.

    Of the kernels on record these send what 4.16 with the commit would.
    """
    if sample.startswith("kernel/"):
        record = json.loads((data / sample / "case.json").read_text())["kernels"]["5.10"]
        counts: Counter[str] = Counter()
        for symbol, count in record["counts"].items():
            counts[symbol.partition(".")[0]] += count  # without the compiler's suffixes
        return record["kernel"], record["stream"], counts
    record = json.loads((data / f"{sample}.json").read_text())["sent"]["6.1.176"]
    return "6.1.176 (User-Mode Linux)", record, {}


def main() -> None:
    """Measure and write."""
    data = Path(sys.argv[1])
    target = data / "workloads" / "send-truncate" / "measured.json"
    old = json.loads(target.read_text()) if target.exists() else {"sources": {}, "rows": []}
    rows = [row for row in old["rows"] if row["quantity"] == "receive time"]
    sources = {sample: dict(of) for sample, of in old["sources"].items()}
    workload = load("send-truncate")
    sides = workload.sides(None, None)
    progs = run("btrfs", "--version").split()[1]
    release = platform.release().partition("-")[0]

    def add(sample: str, side: str, quantity: str, value: float) -> None:
        rows.append({"sample": sample, "side": side, "quantity": quantity, "value": value})

    def beside(names: Iterable[str], text: str) -> dict[str, str]:
        return dict.fromkeys(names, text)

    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for source in workload.inputs:
            where = sources.setdefault(source.sample, {})
            kernel, sent, counts = sent_by_kernel(data, source.sample)
            where["stream"] = {"after": f"Linux {kernel}, sending the same image"}
            commands = {name.lower(): count for name, count in sent["commands"].items()}
            add(source.sample, "after", "stream size", sent["bytes"])
            add(source.sample, "after", "commands", sum(commands.values()))
            for kind, count in sorted({"truncate": 0, **commands}.items()):
                add(source.sample, "after", f"command {kind}", count)
            streams = {}
            with bm.open(bm.sample(source.sample)) as fs:
                for side in sides:
                    streams[side.name] = folder / f"{side.name}.stream"
                    result = bm.send(fs, source.subvolume, behaviour=side.behaviour)
                    streams[side.name].write_bytes(result.data)
            if counts:
                text = f"the same send on Linux {kernel}, by probes"
                where["calls of kernel functions"] = {"after": text}
            for function in sorted(set(counts) & set(result.work) - INLINED):
                add(source.sample, "after", f"sender: {function}", counts[function])
            where["system calls"] = beside(
                SIDES[1:],
                f"strace -c of btrfs receive (btrfs-progs {progs}) on Linux {release}, a kernel "
                "with the companion fix; the start and end of the program are in them, and not in "
                "the model",
            )
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
                rows += [
                    {"sample": source.sample, "side": side, "quantity": "receive time",
                     **taken("native", f"v{release}", "s", runs)}
                    for side, runs in times.items()
                ]  # fmt: skip
                text = f"Linux {release}, both streams in turn"
                where["receive time"] = beside(times, text)
    rows.sort(key=lambda row: (row["sample"], SIDES.index(row["side"]), row["quantity"]))
    lines = ",\n  ".join(json.dumps(row) for row in rows)
    target.write_text(
        f'{{\n "sources": {json.dumps(sources, indent=2)},\n "rows": [\n  {lines}\n ]\n}}\n'
    )


if __name__ == "__main__":
    main()
