# SPDX-License-Identifier: GPL-2.0-only
"""A kernel uses an image as its owner would, and says what it finds."""

from __future__ import annotations

import contextlib
import os
import traceback
from pathlib import Path
from typing import Any, TypedDict

from btrfs_model.kernels.inside.listing import kernel_listing
from btrfs_model.kernels.inside.mounts import mounted, run

_ALARMS = ("WARNING: ", "BUG: ", "Oops", "assertion failed", "Call Trace:")


class Job(TypedDict):
    """What is done with which image, see :func:`use`."""

    image: str
    options: str
    subvolumes: list[str] | None
    write: dict[str, str]
    snapshots: dict[str, str] | None
    send_data: bool
    scrub: bool
    streams: str


class Messages:
    """What the kernel says in its log from now on; nothing where that may not be read."""

    def __init__(self) -> None:
        self.fd: int | None = None
        with contextlib.suppress(OSError):
            self.fd = os.open("/dev/kmsg", os.O_RDONLY | os.O_NONBLOCK)
            os.lseek(self.fd, 0, os.SEEK_END)

    def new(self) -> list[str]:
        """Return what it said since the last call."""
        lines: list[str] = []
        if self.fd is None:
            return lines
        while True:
            try:
                record = os.read(self.fd, 8192)
            except BlockingIOError:
                return lines
            except BrokenPipeError:  # some were overwritten
                continue
            head, _, text = record.decode(errors="replace").partition(";")
            lines.append(f"<{int(head.split(',')[0]) & 7}>{text.splitlines()[0]}")


def send(top: Path, snapshot: str, parent: str | None, data: bool, stream: Path) -> str:
    """Send a snapshot into a file; its name."""
    options = [] if data else ["--no-data"]
    options += [] if parent is None else ["-p", str(top / parent)]
    run("btrfs", "-q", "send", *options, "-f", str(stream), str(top / snapshot))
    return stream.name


def use(top: Path, snapshots: dict[str, str], data: bool, streams: Path) -> dict[str, Any]:
    """Do with a filesystem what its owner does: send, receive, take snapshots, count, balance.

    `snapshots` are read-only, each with the one that it is a change of, or none; `data` says
    whether what is in files is sent. Streams become files in the folder `streams`.
    """
    used: dict[str, Any] = {"read_only": {}, "full": {}, "incremental": {}}
    for path in snapshots:
        said = run("btrfs", "property", "get", "-t", "subvol", str(top / path), "ro")
        used["read_only"][path] = said.strip()
        used["full"][path] = send(top, path, None, data, streams / f"full-{len(used['full'])}")
        if older := snapshots[path]:
            stream = streams / f"incremental-{len(used['incremental'])}"
            used["incremental"][path] = send(top, path, older, data, stream)

    (top / "by the kernel").mkdir()
    (top / "by the kernel" / "file").write_bytes(b"written by the kernel" * 10_000)
    run("btrfs", "subvolume", "snapshot", "-r", str(top), str(top / "taken by the kernel"))
    parent = max(snapshots, default=None)
    used["new"] = send(top, "taken by the kernel", parent, data, streams / "new")
    for path in snapshots:
        # a snapshot's own name is the last part of its path
        folder = top / "by the kernel" / path.replace("/", "-")
        folder.mkdir()
        run("btrfs", "-q", "receive", "-f", str(streams / used["full"][path]), str(folder))
        if path in used["incremental"]:
            (folder / "again").mkdir()
            change = str(streams / used["incremental"][path])
            run("btrfs", "-q", "receive", "-f", change, str(folder / "again"))

    run("btrfs", "quota", "enable", str(top))
    run("btrfs", "quota", "rescan", "-w", str(top))
    used["groups"] = run("btrfs", "qgroup", "show", "--raw", str(top)).splitlines()
    run("btrfs", "quota", "disable", str(top))
    run("btrfs", "filesystem", "resize", "max", str(top))
    run("btrfs", "balance", "start", "--full-balance", str(top))
    run("btrfs", "filesystem", "sync", str(top))
    return used


def do(job: Job, top: str) -> dict[str, Any]:
    """Mount an image and do with it what the job asks for."""
    answer: dict[str, Any] = {}
    image = job["image"]
    with mounted(image, top, job["options"]) as folder:
        device = Path(run("findmnt", "-n", "-o", "SOURCE", "--mountpoint", top).strip()).name
        answer["device"] = device
        if job["subvolumes"] is not None:
            answer["listing"] = kernel_listing(folder, job["subvolumes"])
        for name, content in job["write"].items():
            (folder / name).write_text(content)
        if job["snapshots"] is not None:
            answer["used"] = use(folder, job["snapshots"], job["send_data"], Path(job["streams"]))
        if job["scrub"]:
            answer["scrub"] = run("btrfs", "scrub", "start", "-B", top)
    with Path(image).open("rb") as file:
        os.fsync(file.fileno())  # a guest's cache of it goes to the machine
    return answer


def answer_to(job: Job, top: str) -> dict[str, Any]:
    """Do a job; what went wrong is part of the answer, and what the kernel said."""
    messages = Messages()
    try:
        answer = do(job, top)
    except Exception:
        answer = {"failed": traceback.format_exc()}
    # a kernel that others use as well says more than what this was about
    about, alone = f"(device {answer.pop('device', 'loop')}", os.getpid() == 1
    answer["messages"] = [
        line for line in messages.new()
        if about in line or (alone and any(alarm in line for alarm in _ALARMS))
    ]  # fmt: skip
    return answer
