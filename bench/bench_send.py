# SPDX-License-Identifier: GPL-2.0-only
"""How fast a full send is, beside the machine's own kernel, and how much memory it takes.

The kernel mounts the same image read-only from a loop device and gets the bare ioctl, so that
neither a pipe nor ``btrfs send`` slows it down; the model is asked to behave as 6.18. Both write to
the same file in memory, over what was written before, and have read everything before. Without
root there is no peer.
"""

from __future__ import annotations

import fcntl
import os
import re
import struct
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

import btrfs_model as bm
from bench.timing import best

SNAPSHOTS = [
    ("send-truncate, 20,000 files", "workloads/send-truncate/full"),
    ("send-readahead, 5,000 files", "kernel/send/send-readahead/n5000"),
]
ROUNDS = 4
MEMORY_MIB = 200

# BTRFS_IOC_SEND and its struct btrfs_ioctl_send_args
_IOC_SEND = 0x40489426
_SEND_ARGS = struct.Struct("<qQQQQI28x")


@contextmanager
def mounted(image: Path) -> Iterator[Path]:
    """Mount an image read-only, as root."""
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run(["mount", "-o", "ro,loop", str(image), folder], check=True)
        try:
            yield Path(folder)
        finally:
            subprocess.run(["umount", folder], check=True)


@contextmanager
def memory_file() -> Iterator[BinaryIO]:
    """Make a file in memory; neither a disk nor a pipe limits who writes to it."""
    with os.fdopen(os.memfd_create("stream"), "wb", buffering=0) as file:
        yield file


def kernel_seconds(image: Path, snapshot: str) -> float:
    """Seconds that the machine's kernel takes to send a snapshot."""
    with mounted(image) as top, memory_file() as out:
        volume = os.open(top / snapshot, os.O_RDONLY)
        arguments = _SEND_ARGS.pack(out.fileno(), 0, 0, 0, 0, 0)

        def send() -> None:
            out.seek(0)
            fcntl.ioctl(volume, _IOC_SEND, arguments)

        try:
            return best(send, ROUNDS)
        finally:
            os.close(volume)


def model_seconds(image: Path, snapshot: str) -> tuple[float, int]:
    """Seconds that the model takes, and the size of the stream."""
    with bm.open(image) as fs, memory_file() as out:

        def send() -> int:
            out.seek(0)
            return bm.send(fs, snapshot, to=out).size

        return best(send, ROUNDS), send()


def anonymous_memory(image: Path, snapshot: str) -> float:
    """Most memory beside the mapped image that a process needs to send a snapshot, in MiB."""
    program = (
        "import sys, os, btrfs_model as bm\n"
        "with bm.open(sys.argv[1]) as fs, open(os.devnull, 'wb') as out:\n"
        "    bm.send(fs, sys.argv[2], to=out)\n"
        "    print(open('/proc/self/status').read())\n"
    )
    status = subprocess.run(
        [sys.executable, "-c", program, str(image), snapshot],
        check=True,
        text=True,
        stdout=subprocess.PIPE,
    ).stdout
    # pages of mapped files only grow in number, so at the peak there were no more than at the end
    kib = {name: int(value) for name, value in re.findall(r"^(\w+):\s+(\d+) kB", status, re.M)}
    return (kib["VmHWM"] - kib["RssFile"]) / 1024


def _snapshot_of(image: Path) -> str:
    with bm.open(image) as fs:
        table = fs.subvolumes()
        return str(table[table["read_only"]]["path"].iloc[0])


def run() -> list[dict[str, Any]]:
    """Measure; a row for each figure."""
    rows: list[dict[str, Any]] = []
    can_mount = os.geteuid() == 0
    if not can_mount:
        print("send: not root, so the kernel is not measured", file=sys.stderr)
    for name, sample in SNAPSHOTS:
        image = bm.sample(sample)
        snapshot = _snapshot_of(image)
        peer = None
        seconds, size = model_seconds(image, snapshot)
        if can_mount:
            peer = size / kernel_seconds(image, snapshot) / 1e6
        speed = size / seconds / 1e6
        rows.append(
            {
                "name": f"send: {name}",
                "value": speed,
                "unit": "MB/s",
                "peer": peer,
                "ratio": None if peer is None else speed / peer,
                "bar": "1 x peer",
            }
        )
        rows.append(
            {
                "name": f"send: memory for {name}",
                "value": anonymous_memory(image, snapshot),
                "unit": "MiB",
                "peer": None,
                "ratio": None,
                "bar": f"<= {MEMORY_MIB}",
            }
        )
    return rows
