# SPDX-License-Identifier: GPL-2.0-only
"""Running a script: ``bm.script()``."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, Final, NamedTuple

import pandas as pd

from btrfs_model.base.arguments import checked
from btrfs_model.behaviour import Behaviour
from btrfs_model.cost.device import Device
from btrfs_model.cost.device import load as load_device
from btrfs_model.cost.machine import Machine
from btrfs_model.cost.machine import chosen as chosen_machine
from btrfs_model.patches import KERNEL
from btrfs_model.scripts.answer import region_table, regions
from btrfs_model.scripts.collected import CollectedError
from btrfs_model.scripts.computer import Computer
from btrfs_model.scripts.host import program
from btrfs_model.scripts.steps import Reading, Step, Watcher
from btrfs_model.shell import compile as compiler
from btrfs_model.shell.bash import bash
from btrfs_model.shell.parse import ShellSyntaxError
from btrfs_model.shell.state import ShellError, UnknownError
from btrfs_model.shell.streams import Sink, Source, Stream

if TYPE_CHECKING:
    from collections.abc import Mapping

    from btrfs_model.mount.writable import WritableFilesystem

SIZE: Final = 100 << 30
STEPS: Final = 100_000_000
_ENVIRONMENT: Final = {
    "HOME": "/root", "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
    "SHELL": "/bin/bash", "USER": "root", "LOGNAME": "root", "TERM": "dumb", "LANG": "C",
    "LC_ALL": "C",
}  # fmt: skip


_LEFT_OPEN: Final = {"dev": "/dev/sdx", "DEV": "/dev/sdx", "mnt": "/mnt/x", "MNT": "/mnt/x",
                     "device": "/dev/sdx", "dev1": "/dev/sdx"}  # fmt: skip
"""Variables that messages use as known."""


@dataclass
class ScriptResult:
    """What became of a script.

    Attributes
    ----------
    status : int
        Its exit status.
    output : bytes
        What it wrote to its standard output and error, in their order.
    stdout, stderr : bytes
        Each alone.
    calls : list of Step
        Calls on filesystems, in their order.
    readings : list of Reading
        Readings of the clock.
    machine : Machine
        Whose unit costs moved the clock.
    device : str
        What logs were written to; empty where nothing was waited for.
    filesystems : dict
        By the names of their devices: what is on them in the end.
    """

    status: int
    output: bytes
    stdout: bytes
    stderr: bytes
    calls: list[Step]
    readings: list[Reading]
    machine: Machine
    device: str = ""
    filesystems: dict[str, WritableFilesystem] = field(default_factory=dict)

    def __repr__(self) -> str:
        return (f"<ScriptResult: status {self.status}, {len(self.output):,} bytes of output, "
                f"{len(self.calls):,} calls>")  # fmt: skip

    def close(self) -> None:
        """Give the memory of the filesystems back."""
        for fs in self.filesystems.values():
            fs.close()

    @property
    def steps(self) -> pd.DataFrame:
        """The calls on filesystems, a row each; files that a loop makes together are one.

        Columns ``line``, ``what``, ``seconds`` (NaN where work has no cost), ``bytes`` (of data
        that were read, written, sent or received; 0 where none), ``errno`` (0, or that of the error
        which the call returned), ``work``.
        """
        calls = self.calls
        return pd.DataFrame({
            "line": pd.Series([one.line for one in calls], dtype="int64"),
            "what": pd.Series([one.what for one in calls], dtype="str"),
            "seconds": pd.Series([one.seconds for one in calls], dtype="float64"),
            "bytes": pd.Series([one.bytes for one in calls], dtype="int64"),
            "errno": pd.Series([one.errno for one in calls], dtype="int64"),
            "work": [one.work for one in calls],
        })  # fmt: skip

    @property
    def regions(self) -> pd.DataFrame:
        """What is between two readings of the clock (``date``, ``time``), a row each.

        Columns ``first`` and ``last`` (the lines), ``what``, ``seconds`` with ``low`` and ``high``,
        its 90 % interval (NaN where nothing of the work has a cost), ``depends_on``.
        """
        return region_table(regions(self))


class _Both(Sink):
    """An output that goes to a common one, too."""

    def __init__(self, common: Stream) -> None:
        super().__init__()
        self.common = common

    def write(self, data: bytes) -> None:
        """Append to both."""
        super().write(data)
        self.common.write(data)


@checked
def script(
    text: str,
    *arguments: str,
    behaviour: str | Behaviour = KERNEL,
    machine: str | Machine | None = None,
    size: int = SIZE,
    steps: int = STEPS,
    device: str | Device = "",
    stdin: bytes = b"",
    output: Stream | None = None,
    folder: str | os.PathLike[str] | None = None,
    name: str = "script",
    variables: Mapping[str, str] | None = None,
    jobs_order: int = 0,
) -> ScriptResult:
    """Run a shell script on the model.

    Parameters
    ----------
    text : str
        A script for bash.
    *arguments : str
        ``$1`` and on.
    behaviour : str or Behaviour
        The kernel.
    machine : str or Machine, optional
        Whose unit costs move the clock.
    size : int
        Bytes of a device that comes into being when the script names it.
    steps : int
        Commands that the script may run.
    device : str or Device
        What a log is written to: the device, a name, or a file as for ``btrfs-model replay
        --device``; without it nothing is waited for.
    stdin : bytes
        Its standard input.
    output : Stream, optional
        What it writes goes there too, while it runs.
    folder : str or os.PathLike, optional
        The script begins in a copy of this folder, in memory: what it sources is found there.
    name : str
        ``$0``.
    variables : mapping, optional
        Environment variables that are set for it.
    jobs_order : int
        Background jobs take turns; another number is another order.

    Returns
    -------
    ScriptResult

    Raises
    ------
    ShellSyntaxError
        When bash would refuse the script.
    UnknownError
        At a construct, a command or an option that is not known, with its line.
    """
    chosen = _Chosen(
        text, arguments, Behaviour.parse(behaviour), chosen_machine(machine), size, steps,
        load_device(device) if isinstance(device, str) and device else device or None, stdin,
        None if folder is None else Path(folder), name, variables or {}, jobs_order,
    )  # fmt: skip
    common = output or Sink()
    written = Sink()
    try:
        return _run(chosen, _Tee(common, written), written, collects=True)
    except CollectedError:
        # the same again, but for the calls that fail; what was written then is not told twice
        told = len(written.data)
        written = Sink()
        return _run(chosen, _Tee(_Rest(common, told), written), written, collects=False)


def watched_script(text: str, behaviour: Behaviour, size: int, watcher: Watcher) -> ScriptResult:
    """Run a script whose mounts and calls are watched; each file is made by a call of its own.

    `watcher`: is told of them. Otherwise see :func:`script`.
    """
    chosen = _Chosen(text, (), behaviour, chosen_machine(None), size, STEPS, None, b"", None,
                     "script", {}, 0)  # fmt: skip
    return _run(chosen, Sink(), Sink(), collects=False, watcher=watcher)


class _Chosen(NamedTuple):
    """What a script runs with."""

    text: str
    arguments: tuple[str, ...]
    behaviour: Behaviour
    costs: Machine
    size: int
    steps: int
    disk: Device | None
    stdin: bytes
    folder: Path | None
    name: str
    variables: Mapping[str, str]
    jobs_order: int


def _run(
    chosen: _Chosen, common: Stream, written: Sink, *, collects: bool,
    watcher: Watcher | None = None,
) -> ScriptResult:  # fmt: skip
    """Run a script; CollectedError where its files have to be made one by one."""
    computer = Computer(chosen.behaviour, chosen.costs, size=chosen.size, steps=chosen.steps,
                        program=program, disk=chosen.disk, collects=collects,
                        jobs_order=chosen.jobs_order, watcher=watcher)  # fmt: skip
    text = chosen.text
    run = compiler.script(text)
    streams = _Both(common), _Both(common)
    shell = bash(computer, {0: Source(chosen.stdin), 1: streams[0], 2: streams[1]}, chosen.name)
    if chosen.folder is not None:
        place = "/" + (chosen.folder.resolve().name or "folder")
        computer.tree.copy_folder(chosen.folder, place)
        computer.chdir(place)
    shell.arguments = list(chosen.arguments)
    for name, value in _LEFT_OPEN.items():
        if name in chosen.variables:
            continue
        if re.search(rf"\${{?{name}\b", text) and not re.search(rf"(?m)\b{name}=", text):
            shell.values[name] = value
            streams[1].write(f"script: ${name} is not set in it: {value} is taken\n".encode())
    for name, value in {**_ENVIRONMENT, **chosen.variables}.items():
        shell.values[name] = value
        shell.mark(name, "x")
    try:
        status = compiler.subshell(shell, run)
        computer.jobs.end()
        computer.flush()
    except (UnknownError, ShellError) as error:
        computer.close()
        if isinstance(error, ShellSyntaxError):
            raise
        raise type(error)(f"line {computer.line}: {error}") from error
    except RecursionError:
        computer.close()
        raise UnknownError(f"line {computer.line}: commands are nested too deeply") from None
    except BaseException:
        computer.close()
        raise
    filesystems = {path: device.filesystem for path, device in computer.devices.items()
                   if device.filesystem is not None}  # fmt: skip
    return ScriptResult(status, bytes(written.data), bytes(streams[0].data), bytes(streams[1].data),
                        computer.steps, computer.readings, chosen.costs,
                        "" if chosen.disk is None else chosen.disk.name, filesystems)  # fmt: skip


class _Rest(Stream):
    """An output that was written to a point."""

    def __init__(self, target: Stream, told: int) -> None:
        self.target, self.told = target, told

    def write(self, data: bytes) -> None:
        """Write what was not written."""
        skipped = min(self.told, len(data))
        self.told -= skipped
        if data[skipped:]:
            self.target.write(data[skipped:])


class _Tee(Stream):
    """An output that goes to two."""

    def __init__(self, *targets: Stream) -> None:
        self.targets = targets

    def write(self, data: bytes) -> None:
        """Write to each."""
        for one in self.targets:
            one.write(data)


class Writing(Stream):
    """An output that is written while the script runs."""

    def __init__(self, file: BinaryIO) -> None:
        self.file = file

    def write(self, data: bytes) -> None:
        """Write, and flush at the end of a line."""
        self.file.write(data)
        if data.endswith(b"\n"):
            self.file.flush()
