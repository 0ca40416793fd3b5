# SPDX-License-Identifier: GPL-2.0-only
"""Asking a kernel what is in images: one that may hang, and must not take the tests with it.

A session starts a process in which :mod:`kernel_agent` answers, here (:mod:`live`) or in a guest
(:mod:`uml`), and gives it one job after the other. Each has a time limit: then the process and
all that it started are killed.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import selectors
import shutil
import signal
import subprocess
import time
from collections import deque
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Self

from kernel_agent import MARK
from kernel_records import Listing

_HERE = Path(__file__).parent
_AGENT = ("kernel_agent.py", "kernel_records.py")
# Seconds in which a kernel starts, or does a job: far longer than on the slowest machine.
_START = 300
_MOUNT = 300
_DYING = 5


class KernelHungError(Exception):
    """The kernel did not answer in time, or died; what it said last is in the message."""


@dataclass
class Answer:
    """What a kernel made of an image.

    Attributes
    ----------
    failed : str
        Why it could not be mounted or read; empty where it could.
    listing : dict
        What is in each subvolume that was asked for.
    scrub : str
        What ``btrfs scrub`` said.
    used : dict
        What the kernel sent and counted, see :func:`kernel_agent.use`.
    messages : list of str
        What the kernel logged about it, each line with its level in front.
    """

    failed: str = ""
    listing: Listing | None = None
    scrub: str = ""
    used: dict[str, Any] | None = None
    messages: tuple[str, ...] = ()

    @property
    def alarms(self) -> list[str]:
        """Messages of the level of a warning and above; that a format is old is none."""
        return [line for line in self.messages if line[1] <= "4" and "deprecated" not in line]


class KernelSession:
    """Jobs for one kernel, which is started at the first, and again after one that hung it.

    Attributes
    ----------
    folder : Path
        Is removed with all that is in it when the session is closed.
    release : str
        Of the kernel, once it has been asked.
    """

    again = True
    """Whether a kernel that hung may be started again."""

    def __init__(self) -> None:
        self.release = ""
        self._place = TemporaryDirectory(prefix="kernel-")
        self.folder = Path(self._place.name)
        for name in _AGENT:
            shutil.copy(_HERE / name, self.folder)
        self._numbers = itertools.count()
        self._process: subprocess.Popen[bytes] | None = None
        self._said: deque[str] = deque(maxlen=60)
        self._pending = b""
        self._hung = False

    def command(self) -> list[str]:
        """What runs the agent."""
        raise NotImplementedError

    def environment(self) -> dict[str, str]:
        """What is added to the environment of that."""
        return {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def new_image(self) -> Path:
        """A name in the session's folder that no image had before: a guest may still cache it."""
        return self.folder / f"image-{next(self._numbers)}"

    def ask(
        self,
        image: Path,
        *,
        options: str = "rw,noatime",
        subvolumes: list[str] | None = None,
        write: dict[str, str] | None = None,
        snapshots: dict[str, str] | None = None,
        send_data: bool = True,
        scrub: bool = False,
        timeout: float = _MOUNT,
    ) -> Answer:
        """Mount an image, list subvolumes, write files at the top, use it, scrub, unmount.

        Where `snapshots` are given it is used as :func:`kernel_agent.use` says, which sends what
        is in files where `send_data` says so. Streams are then in :attr:`folder`.

        Raises
        ------
        KernelHungError
            Where that takes longer than `timeout` seconds.
        """
        if self._hung:
            raise KernelHungError(f"kernel {self.release} hung before")
        if self._process is None:
            self._start()
        assert self._process is not None
        assert self._process.stdin is not None
        number = next(self._numbers)
        job = {"image": str(image), "options": options, "subvolumes": subvolumes,
               "write": write or {}, "scrub": scrub, "snapshots": snapshots,
               "send_data": send_data,
               "streams": str(self.folder)}  # fmt: skip
        (self.folder / f"job-{number}.json").write_text(json.dumps(job))
        self._process.stdin.write(f"{number}\n".encode())
        self._process.stdin.flush()
        self._wait_for(str(number), timeout)
        answer: dict[str, Any] = json.loads((self.folder / f"answer-{number}.json").read_text())
        for kind in ("job", "answer"):
            (self.folder / f"{kind}-{number}.json").unlink()
        return Answer(**answer)

    def close(self) -> None:
        """Kill all processes of the session and remove its folder."""
        self._kill()
        self._place.cleanup()

    def _start(self) -> None:
        self._said.clear()
        self._pending = b""
        self._process = subprocess.Popen(
            self.command(), env={**os.environ, **self.environment()}, start_new_session=True,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        )  # fmt: skip
        self.release = self._wait_for("ready", _START)

    def _wait_for(self, word: str, timeout: float) -> str:
        """Read until the agent says a word; return what follows it."""
        end = time.monotonic() + timeout
        while True:
            line = self._line(end)
            if line is None:
                self._kill()
                self._hung = not self.again
                what = "\n".join(self._said)
                raise KernelHungError(
                    f"kernel {self.release} did not answer in {timeout} s:\n{what}"
                )
            said, _, rest = line.removeprefix(MARK).partition(" ")
            if line.startswith(MARK) and said == word:
                return rest
            self._said.append(line)

    def _line(self, end: float) -> str | None:
        """The next line that the agent or its kernel says, None where there is none in time."""
        assert self._process is not None
        assert self._process.stdout is not None
        with selectors.DefaultSelector() as selector:
            selector.register(self._process.stdout, selectors.EVENT_READ)
            while b"\n" not in self._pending:
                if not selector.select(max(0, end - time.monotonic())):
                    return None
                data = os.read(self._process.stdout.fileno(), 1 << 16)
                if not data:
                    return None
                self._pending += data
        line, _, self._pending = self._pending.partition(b"\n")
        return line.decode(errors="replace").rstrip("\r")

    def _kill(self) -> None:
        if self._process is None:
            return
        # its own session: nothing else is in the group
        group = self._process.pid
        os.killpg(group, signal.SIGKILL)
        with contextlib.suppress(subprocess.TimeoutExpired):  # of a mount that hangs
            self._process.wait(_DYING)
        with contextlib.suppress(ProcessLookupError):
            for _ in range(100 * _DYING):  # what it started dies a little later
                os.killpg(group, 0)
                time.sleep(0.01)
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.stdout.close()
        self._process = None
