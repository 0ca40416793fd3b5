# SPDX-License-Identifier: GPL-2.0-only
"""A kernel in which functions are called: one that may hang, and must not take the caller with it.

A kernel is a process in which :mod:`~btrfs_model.kernels.inside.agent` answers: on this machine
(:mod:`~btrfs_model.kernels.native`) or in a guest (:mod:`~btrfs_model.kernels.uml`). It gets one
call after the other. Each has a time limit: then the process and all that it started are killed.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import selectors
import signal
import subprocess
import sys
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import ParamSpec, Self, TypeVar

from btrfs_model.base.errors import KernelFailedError, KernelHungError
from btrfs_model.behaviour import preset_of
from btrfs_model.kernels.inside.agent import plain, restored
from btrfs_model.kernels.inside.clock import MARK, PROCESSOR

P = ParamSpec("P")
R = TypeVar("R")

_START = 300
_DYING = 5
SHM = Path("/dev/shm")
"""Files in memory."""
_ROOM = 4 << 30
_ROOT = Path(__file__).parents[2]
_AGENT = """\
import sys
sys.path.append(sys.argv.pop(1))
from btrfs_model.kernels.inside.agent import main
main()
"""


def has_room(folder: Path, size: int) -> bool:
    """Whether a folder may be written to and has so many bytes free."""
    if not os.access(folder, os.W_OK):
        return False
    status = os.statvfs(folder)
    return status.f_bavail * status.f_frsize >= size


@contextmanager
def _on_processors(processors: set[int]) -> Iterator[None]:
    """Let this thread, and what it starts, run on some processors alone."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, processors)
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


class Kernel(ABC):
    """A kernel that is started at the first call, and again after one that hung it.

    Parameters
    ----------
    name : str
        What it is called until its release is known.
    limit : float
        Seconds that a call may take.

    Attributes
    ----------
    folder : Path
        Seen at the same place by this process and by the kernel.
    images : Path
        A folder for images, in memory where there is room. Both go when the session is closed, or
        the process of who opened it dies.
    release : str
        Of the kernel, once it runs; before, its name or file.
    top : str
        Where it mounts.
    """

    again = True
    """Whether a kernel that hung may be started again."""

    def __init__(self, name: str, limit: float = 300) -> None:
        self.limit = limit
        self.release = name
        self._place = TemporaryDirectory(prefix="kernel-")
        self.folder = Path(self._place.name)
        memory = str(SHM) if has_room(SHM, _ROOM) else None
        self._images = TemporaryDirectory(prefix="kernel-", dir=memory)
        self.images = Path(self._images.name)
        self.top = str(self.folder / "mnt")
        self._numbers = itertools.count()
        self._process: subprocess.Popen[bytes] | None = None
        self._said: deque[str] = deque(maxlen=60)
        self._pending = b""
        self._hung = False

    @abstractmethod
    def command(self) -> list[str]:
        """Return what runs the agent."""

    def agent(self, *arguments: str) -> list[str]:
        """Return the agent's command line: a Python without sites, which starts at once."""
        python = [sys.executable, "-S", "-E", "-B", "-c", _AGENT, str(_ROOT)]
        return [*python, str(self.folder), str(self.images), *arguments]

    def processor_ns(self) -> int:
        """Return the processor time of the process that is the kernel, in nanoseconds."""
        assert self._process is not None
        return int(Path(f"/proc/{self._process.pid}/schedstat").read_text().split()[0])

    def processors(self) -> set[int]:
        """Return which processors of this machine it may run on."""
        return os.sched_getaffinity(0)

    def environment(self) -> dict[str, str]:
        """Return what is added to the environment of that."""
        return {}

    @abstractmethod
    def attached(self, image: Path, *, read_only: bool) -> AbstractContextManager[str]:
        """Attach an image; what the kernel mounts as long as it is attached."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def preset(self) -> str:
        """The preset of :mod:`btrfs_model.behaviour` for this kernel, which is started for it."""
        self.start()
        return preset_of(self.release)

    def new_file(self) -> Path:
        """Make up a name in the folder that no file had before: a guest may still cache it."""
        return self.folder / f"file-{next(self._numbers)}"

    def start(self) -> None:
        """Start the kernel if it does not run.

        Raises
        ------
        KernelHungError
            When it does not come up, or hung before and cannot be started again.
        KernelFailedError
            When it is closed.
        """
        if not self.folder.exists():
            raise KernelFailedError(f"kernel {self.release} is closed")
        if self._hung:
            raise KernelHungError(f"kernel {self.release} hung before")
        if self._process is not None:
            return
        self._said.clear()
        self._pending = b""
        with _on_processors(self.processors()):
            self._process = subprocess.Popen(
                self.command(), env={**os.environ, **self.environment()}, start_new_session=True,
                cwd=self.folder, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
            )  # fmt: skip
        self.release = self._wait_for("ready", _START)

    def call(self, function: Callable[P, R], *arguments: P.args, **named: P.kwargs) -> R:
        """Call a function in the kernel.

        Its module needs nothing but Python's library and modules like itself; what goes in and
        comes out passes through JSON.

        Raises
        ------
        KernelHungError
            When it takes longer than :attr:`limit`, or the kernel died.
        KernelFailedError
            When the function raised something.
        """
        self.start()
        module, number = function.__module__, str(next(self._numbers))
        root = Path(function.__code__.co_filename).resolve().parents[module.count(".")]
        job = {"root": str(root), "module": module, "function": function.__qualname__,
               "arguments": arguments, "named": named}  # fmt: skip
        files = [self.folder / f"{kind}-{number}.json" for kind in ("job", "answer")]
        files[0].write_text(json.dumps(job, default=plain))
        self._tell(number)
        try:
            self._wait_for(number, self.limit)
        except BaseException:  # who asked is interrupted: nobody waits for what it does
            self.stop()
            raise
        answer = json.loads(files[1].read_text(), object_hook=restored)
        for file in files:
            file.unlink()
        if "failed" in answer:
            error = KernelFailedError(f"kernel {self.release}: {answer['failed']}")
            error.add_note(answer["traceback"])
            raise error
        value: R = answer["value"]
        return value

    @property
    def runs(self) -> bool:
        """Whether there is a process of it."""
        return self._process is not None

    def stop(self) -> None:
        """Kill all processes of the session; the next call starts the kernel again."""
        if self._process is None:
            return
        # its own session: nothing else is in the group
        group = self._process.pid
        with contextlib.suppress(ProcessLookupError):
            os.killpg(group, signal.SIGKILL)
        with contextlib.suppress(subprocess.TimeoutExpired):  # of a mount that hangs
            self._process.wait(_DYING)
        with contextlib.suppress(ProcessLookupError):
            for _ in range(100 * _DYING):  # what it started dies a little later
                os.killpg(group, 0)
                time.sleep(0.01)
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.close()
        self._process.stdout.close()
        self._process = None

    def close(self) -> None:
        """Stop it and remove its folders."""
        self.stop()
        self._place.cleanup()
        self._images.cleanup()

    def _wait_for(self, word: str, timeout: float) -> str:
        """Read until the agent says a word; return what follows it."""
        end = time.monotonic() + timeout
        while True:
            line = self._line(end)
            if line is None:
                died = time.monotonic() < end
                self.stop()
                self._hung = not self.again
                what = "died" if died else f"did not answer in {timeout} s"
                last = f"; it said last: {self._said[-1]}" if self._said else ""
                error = KernelHungError(f"kernel {self.release} {what}{last}")
                error.add_note("\n".join(self._said))
                raise error
            said, _, rest = line.removeprefix(MARK).partition(" ")
            if line == MARK + PROCESSOR:
                self._tell(str(self.processor_ns()))
            elif line.startswith(MARK) and said == word:
                return rest
            else:
                self._said.append(line)

    def _tell(self, word: str) -> None:
        assert self._process is not None
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # it died; the wait says so
            self._process.stdin.write(f"{word}\n".encode())
            self._process.stdin.flush()

    def _line(self, end: float) -> str | None:
        """Return what the agent or its kernel says next, None where there is nothing in time."""
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
