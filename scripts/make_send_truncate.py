#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0-only
"""Make the image of the `send-truncate` workload at full scale, on the kernel of this machine.

It does what the script in the commit message does: a default filesystem of that time, then ten
workers at once, each of which opens (creates) and writes 5000 bytes of 0xab to each of ``file_1``
.. ``file_20000``, then a read-only snapshot. The names do not depend on the worker, so 20,000 files
result. Needs root, a loop device, mkfs.btrfs and zstd. ::

    scripts/make_send_truncate.py make data/workloads/send-truncate

writes ``full.img.zst`` and ``full.json``, which holds how it was made and what this kernel sent. ::

    scripts/make_send_truncate.py record data/workloads/send-truncate

on another kernel (such as User-Mode Linux, with the machine's files as its root) adds what that one
sends of the same image.
"""

import hashlib
import json
import multiprocessing
import os
import platform
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path

FILES = 20_000
FILE_BYTES = 5000
WORKERS = 10
IMAGE_BYTES = 1 << 30
MKFS = ["mkfs.btrfs", "-q", "-f", "-O", "^no-holes", "-R", "^free-space-tree"]


def run(*command: str) -> str:
    """Run a command that must succeed and return what it prints."""
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout


def write_files(top: Path) -> None:
    """One worker: ``xfs_io -f -c "pwrite -S 0xab 0 5000"`` on every file."""
    content = b"\xab" * FILE_BYTES
    for number in range(1, FILES + 1):
        file = os.open(top / f"file_{number}", os.O_RDWR | os.O_CREAT, 0o600)
        os.pwrite(file, content, 0)
        os.close(file)


def build(image: Path, mount: Path) -> None:
    """Fill the image and take the snapshot."""
    with image.open("wb") as file:
        file.truncate(IMAGE_BYTES)
    run(*MKFS, str(image))
    run("mount", "-o", "loop", str(image), str(mount))
    try:
        workers = [
            multiprocessing.Process(target=write_files, args=(mount,)) for _ in range(WORKERS)
        ]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
        run("btrfs", "-q", "subvolume", "snapshot", "-r", str(mount), str(mount / "snap1"))
        run("btrfs", "filesystem", "sync", str(mount))
    finally:
        run("umount", str(mount))


def restore(packed: Path, image: Path) -> str:
    """Decompress the image, sparse; its sha256."""
    run("zstd", "-q", "-d", "--long=27", "--sparse", str(packed), "-o", str(image))
    digest = hashlib.sha256()
    with image.open("rb") as file:
        while piece := file.read(1 << 20):
            digest.update(piece)
    return digest.hexdigest()


def send(image: Path, mount: Path) -> dict[str, object]:
    """Send the snapshot from the image mounted read-only; what the kernel sent."""
    run("mount", "-t", "btrfs", "-o", "loop,ro", str(image), str(mount))
    stream = image.with_name("stream")
    try:
        run("btrfs", "-q", "send", "--proto", "1", "-f", str(stream), str(mount / "snap1"))
    finally:
        run("umount", str(mount))
    dump = subprocess.Popen(
        ["btrfs", "receive", "--dump", "-f", str(stream)], stdout=subprocess.PIPE, text=True
    )
    assert dump.stdout is not None
    commands = Counter(line.split()[0] for line in dump.stdout)
    if dump.wait():
        raise SystemExit("btrfs receive --dump failed")
    return {
        "bytes": stream.stat().st_size,
        "sha256": hashlib.sha256(stream.read_bytes()).hexdigest(),
        "commands": dict(sorted(commands.items())) | {"end": 1},
    }


def main() -> None:
    """Do what the command line says: ``make FOLDER`` or ``record FOLDER``."""
    what, folder = sys.argv[1], Path(sys.argv[2])
    packed, described = folder / "full.img.zst", folder / "full.json"
    with tempfile.TemporaryDirectory() as name:
        image, mount = Path(name) / "full.img", Path(name) / "mnt"
        mount.mkdir()
        if what == "make":
            build(image, mount)
            run("zstd", "-q", "-f", "-19", "--long=27", str(image), "-o", str(packed))
            image.unlink()
            case = {
                "workload": "send-truncate",
                "files": FILES,
                "file_bytes": FILE_BYTES,
                "workers": WORKERS,
                "snapshot": "snap1",
                "image": {"raw_bytes": IMAGE_BYTES, "raw_sha256": restore(packed, image)},
                "mkfs": MKFS,
                "progs": run("btrfs", "--version").strip().splitlines()[0],
                "built_on": platform.release(),
                "sent": {},
            }
        else:
            case = json.loads(described.read_text())
            if restore(packed, image) != case["image"]["raw_sha256"]:
                raise SystemExit(f"{packed} is not the image that {described} describes")
        case["sent"][platform.release().partition("-")[0]] = send(image, mount)
        described.write_text(json.dumps(case, indent=1) + "\n")


if __name__ == "__main__":
    main()
