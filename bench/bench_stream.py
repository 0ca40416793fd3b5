# SPDX-License-Identifier: GPL-2.0-only
"""How fast send streams are read and printed, beside ``btrfs receive --dump``.

The stream of small commands repeats one that a real kernel wrote for the ``send-utimes`` workload,
the most common kinds of which are utimes, rename, link and unlink; the one with data is written
here. Both are far larger than the processor's caches.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections import deque
from pathlib import Path
from typing import Any

import zstandard

from bench.timing import best
from btrfs_model.ondisk.stream import STREAM_HEADER
from btrfs_model.stream.dump import dump_text
from btrfs_model.stream.index import read_batches
from btrfs_model.stream.reader import read_stream
from btrfs_model.stream.writer import StreamWriter

PROJECT = Path(__file__).resolve().parent.parent
SMALL_BYTES = 64 << 20
DATA_BYTES = 512 << 20
WRITE_BYTES = 48 << 10


def _kernel_stream() -> bytes:
    """Return a stream of the send-utimes workload as a kernel wrote it."""
    roots = [PROJECT / "data" / "kernel"]
    if os.environ.get("BTRFS_MODEL_ORACLE"):
        roots.insert(0, Path(os.environ["BTRFS_MODEL_ORACLE"]))
    for root in roots:
        for packed in sorted((root / "send" / "send-utimes").glob("*/6.18.stream.zst")):
            with zstandard.ZstdDecompressor().stream_reader(packed.read_bytes()) as reader:
                return reader.read()
    raise FileNotFoundError("no stream of send-utimes in data/kernel or BTRFS_MODEL_ORACLE")


def small_commands() -> bytes:
    """Make one stream with the commands of a real one, again and again."""
    stream = _kernel_stream()
    end = StreamWriter().end()
    commands = stream[STREAM_HEADER.size : -len(end)]
    return stream[: STREAM_HEADER.size] + commands * (SMALL_BYTES // len(commands)) + end


def data_commands() -> bytes:
    """Make a stream that writes one file."""
    writer = StreamWriter()
    subvol = writer.command("subvol", path=b"s", uuid=bytes(16), ctransid=7)
    content = os.urandom(WRITE_BYTES)
    write = writer.command("write", path=b"f", file_offset=0, data=content)
    count = DATA_BYTES // len(write)
    return b"".join([writer.header(), subvol, *[write] * count, writer.end()])


def _count(stream: bytes) -> int:
    return sum(len(batch) for batch in read_batches(stream))


def _dump(path: Path) -> None:
    with Path(os.devnull).open("wb") as out:
        dump_text(path, out)


def _progs_dump(path: Path) -> None:
    command = ["btrfs", "receive", "--dump", "-f", str(path)]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)


def _row(name: str, value: float, unit: str, bar: str, peer: float | None = None) -> dict[str, Any]:
    ratio = None if peer is None else value / peer
    return {"name": name, "value": value, "unit": unit, "peer": peer, "ratio": ratio, "bar": bar}


def run() -> list[dict[str, Any]]:
    """Measure; a row for each figure, with that of btrfs-progs as `peer` where it is there."""
    small, data = small_commands(), data_commands()
    commands = _count(small)
    have_progs = shutil.which("btrfs") is not None
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        small_file, data_file = Path(folder, "small.stream"), Path(folder, "data.stream")
        small_file.write_bytes(small)
        data_file.write_bytes(data)
        # progs has no way to read a stream without printing it
        progs = commands / best(lambda: _progs_dump(small_file)) / 1e6 if have_progs else None
        progs_data = len(data) / best(lambda: _progs_dump(data_file)) / 1e6 if have_progs else None
        seconds = best(lambda: _count(small))
        rows.append(
            _row("stream: index small commands", commands / seconds / 1e6, "M/s", ">= 3", progs)
        )
        seconds = best(lambda: deque(read_stream(small), maxlen=0))
        rows.append(_row("stream: read_stream", commands / seconds / 1e6, "M/s", ">= 3", progs))
        seconds = best(lambda: _dump(small_file))
        rows.append(_row("stream: dump text", commands / seconds / 1e6, "M/s", "3 x peer", progs))
        seconds = best(lambda: _count(data))
        rows.append(
            _row("stream: verify data", len(data) / seconds / 1e6, "MB/s", "memory", progs_data)
        )
        seconds = best(lambda: bytearray(data))
        rows.append(_row("memory: copy, to compare", len(data) / seconds / 1e6, "MB/s", ""))
    return rows


def main() -> None:
    """Print the figures as a table."""
    print(f"{'':30}{'value':>10} {'unit':6}{'progs':>10}{'ratio':>8}  bar")
    for row in run():
        peer = "" if row["peer"] is None else f"{row['peer']:.2f}"
        ratio = "" if row["ratio"] is None else f"{row['ratio']:.1f}"
        left = f"{row['name']:30}{row['value']:10.2f} {row['unit']:6}"
        print(f"{left}{peer:>10}{ratio:>8}  {row['bar']}")


if __name__ == "__main__":
    main()
