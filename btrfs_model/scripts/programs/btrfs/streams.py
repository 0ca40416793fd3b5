# SPDX-License-Identifier: GPL-2.0-only
"""``btrfs send`` and ``btrfs receive``."""

from __future__ import annotations

import errno
import io
import os
from typing import TYPE_CHECKING, BinaryIO, Final, cast

from btrfs_model.base.errors import BtrfsModelError, ReceiveError
from btrfs_model.ondisk.stream import MAGIC, STREAM_HEADER
from btrfs_model.questions.receive.api import receive as receive_stream
from btrfs_model.questions.send.ioctl import send as send_snapshot
from btrfs_model.questions.send.parent import find_good_parent
from btrfs_model.scripts.program import options, reason, say
from btrfs_model.scripts.programs.btrfs.common import (
    Command,
    counted,
    decoded,
    is_subvolume,
    on_mount,
)
from btrfs_model.shell.state import UnknownError
from btrfs_model.shell.streams import Null
from btrfs_model.stream.dump import dump_text
from btrfs_model.stream.reader import read_stream

if TYPE_CHECKING:
    from btrfs_model.scripts.computer import Computer
    from btrfs_model.shell.state import Shell


class _Nowhere:
    """Where a stream to ``/dev/null`` goes: none of it is kept."""

    def write(self, data: bytes) -> int:
        """Take all."""
        return len(data)


def _send(computer: Computer, shell: Shell, arguments: list[str]) -> int:
    given: dict[str, list[str]] = {}
    paths: list[str] = []
    at = 0
    while at < len(arguments):
        word = arguments[at]
        at += 1
        if word in ("-p", "-c", "-f", "--proto"):
            given.setdefault(word, []).append(arguments[at])
            at += 1
        elif word in ("-q", "-v", "-e", "--quiet", "--no-data", "--compressed-data"):
            given[word] = [""]
        elif word.startswith("-"):
            raise UnknownError(f"btrfs send: {word}: this option is not known")
        else:
            paths.append(word)
    counted("send", paths, 1, None)
    target = given.get("-f", [""])[0]
    parent = given["-p"][0] if "-p" in given else None
    sources = given.get("-c", [])
    for one in (parent, *sources):
        if one is not None and computer.stat(one) is None:
            say(shell, f"ERROR: realpath {one} failed: No such file or directory\n")
            return 1
    if parent is not None and not _may_be_sent(computer, shell, parent, "parent "):
        return 1
    with computer.open(target, "w", 0o600) if target else shell.files[1] as output:
        to = cast("BinaryIO", _Nowhere()) if type(output) is Null else None
        for path in paths:
            if not _may_be_sent(computer, shell, path):
                return 1
            if not {"-q", "--quiet"} & set(given):
                say(shell, f"At subvol {path}\n")
            try:
                data = _stream(computer, path, parent, sources, given, to)
            except OSError as error:
                output.write(getattr(error, "partial", b"") or b"")
                say(
                    shell, f"ERROR: send ioctl failed with {-(error.errno or 0)}: {reason(error)}\n"
                )
                return 1
            output.write(data)
    return 0


def _may_be_sent(computer: Computer, shell: Shell, path: str, kind: str = "") -> bool:
    whole = computer.absolute(path).rstrip("/")
    if computer.stat(path) is None:
        say(shell, f"ERROR: unable to resolve {path}\n")
        return False
    if not is_subvolume(computer, path):
        say(shell, f"ERROR: failed to get flags for subvolume {whole}: Invalid argument\n")
        return False
    mounted, inside = on_mount(computer, path)
    if not mounted.has_read_only(inside):
        say(shell, f"ERROR: {kind}subvolume {whole} is not read-only\n")
        return False
    return True


def _stream(
    computer: Computer,
    path: str,
    parent: str | None,
    sources: list[str],
    given: dict[str, list[str]],
    to: BinaryIO | None,
) -> bytes:
    mounted, inside = on_mount(computer, path)
    fs = mounted.fs
    fs.sync()
    compressed = "--compressed-data" in given
    proto = int(given.get("--proto", ["2" if compressed else "1"])[0])
    clones = [on_mount(computer, one)[1] for one in sources]
    before = None if parent is None else on_mount(computer, parent)[1]
    if before is None and clones:
        sent, known = fs.subvolume(inside), [fs.subvolume(one) for one in clones]
        before = decoded(find_good_parent(fs, sent, known).path)
    if before is not None and before not in clones:
        clones.append(before)
    blocks = mounted.device.blocks
    with computer.timed(f"send {path}") as step:
        try:
            result = send_snapshot(
                fs, inside, before, clones or None, behaviour=computer.behaviour, proto=proto,
                compressed=compressed, no_file_data="--no-data" in given, to=to,
                cached=blocks.addresses if blocks else (),
            )  # fmt: skip
        except OSError as error:
            step.bytes = len(getattr(error, "partial", b""))
            raise
        step.work.update(result.work)
        step.bytes = result.size
        if blocks is not None and result.cold is not None:
            blocks.read(step, result.cold)
    return bytes(result.data or b"")


def _no_stream(data: bytes) -> tuple[str, int] | None:
    """Say what is wrong with the head of a stream, with the errno; None for nothing."""
    if not data:
        return "", errno.ENODATA
    if len(data) < STREAM_HEADER.size:
        told = f"short read from stream: expected {STREAM_HEADER.size} read {len(data)}"
        return told, errno.EIO
    if not data.startswith(MAGIC):
        return "unexpected header", errno.EINVAL
    return None


def _receive(computer: Computer, shell: Shell, arguments: list[str]) -> int:
    given, paths = options(arguments, "qveC", "fmE", long=("dump", "quiet", "force-decompress"),
                           program_name="btrfs receive")  # fmt: skip
    data = computer.read(given["f"]) if "f" in given else shell.files[0].read()
    dumps = "dump" in given
    if not dumps and paths and computer.stat(paths[0]) is None:
        say(shell, f"ERROR: realpath({paths[0]}) failed: No such file or directory\n")
        return 1
    if why := _no_stream(data):
        told, number = why
        if told and (dumps or data):
            say(shell, f"ERROR: {told}\n")
        if dumps:
            say(shell, f"ERROR: failed to dump the send stream: {os.strerror(number)}\n")
        elif not data:
            say(shell, "ERROR: empty stream is not considered valid\n")
        return 1
    if dumps:
        return _dump(shell, data)
    if len(paths) != 1:
        raise UnknownError("btrfs receive: say one path")
    mounted, inside = on_mount(computer, paths[0])
    mounted.may_write(paths[0])
    fs = mounted.fs
    name = ""
    for command in read_stream(data):
        if command.name in ("subvol", "snapshot"):
            name = decoded(command["path"])
            if not {"q", "quiet"} & set(given):
                # btrfs receive tells the one on its standard error, the other on its output
                told = f"At {command.name} {name}\n"
                shell.write(told) if command.name == "snapshot" else say(shell, told)
            break
    try:
        with computer.timed("receive") as step:
            step.bytes = len(data)
            result = receive_stream(fs, io.BytesIO(data), inside)
            step.work.update(getattr(result, "work", {}))
    except ReceiveError as error:
        if error.command in ("subvol", "snapshot"):
            kind = {"subvol": "subvolume"}.get(error.command, error.command)
            say(shell, f"ERROR: creating {kind} {name} failed: {reason(error)}\n")
        else:
            say(shell, f"ERROR: {error.command} failed: {reason(error)}\n")
        return 1
    except BtrfsModelError as error:
        say(shell, f"ERROR: {error}\n")
        return 1
    return 0


def _dump(shell: Shell, data: bytes) -> int:
    out = io.BytesIO()
    dump_text(io.BytesIO(data), out)
    shell.files[1].write(out.getvalue())
    return 0


COMMANDS: Final[dict[str, Command]] = {"send": _send, "receive": _receive}
