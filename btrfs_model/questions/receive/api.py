# SPDX-License-Identifier: GPL-2.0-only
"""What is asked of a receiver, and what it gives back."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from html import escape
from typing import TYPE_CHECKING

from btrfs_model.base.arguments import checked
from btrfs_model.base.errors import BtrfsModelError, ReceiveError
from btrfs_model.base.tables import counts_frame, counts_table, html_table, plural
from btrfs_model.cost.answer import Answer
from btrfs_model.mount.bulk.no_gc import no_gc
from btrfs_model.native.lease import exclusive
from btrfs_model.ondisk.stream import COMMANDS
from btrfs_model.questions.receive.receiver import Receiver
from btrfs_model.stream.index import read_batches
from btrfs_model.stream.reader import command_of
from btrfs_model.stream.source import name_of

if TYPE_CHECKING:
    import pandas as pd

    from btrfs_model.mount.writable import WritableFilesystem
    from btrfs_model.stream.index import Batch
    from btrfs_model.stream.source import Source


@dataclass(frozen=True, repr=False)
class ReceiveResult(Answer):
    """What a receiver did.

    Attributes
    ----------
    subvolumes : list of str
        Paths, from the top of the filesystem, of the subvolumes that were received, in order.
    commands : dict of str to int
        How many commands of each kind, in the order of their numbers.
    calls : Counter
        System calls that ``btrfs receive`` makes for them, by name, see
        :func:`btrfs_model.cost.receiver.receiver_calls`.
    """

    subvolumes: list[str]
    commands: dict[str, int]
    calls: Counter[str]

    @property
    def table(self) -> pd.DataFrame:
        """A row for each kind of command: ``command``, ``count``, in the order of their numbers."""
        return counts_frame("command", self.commands)

    @property
    def work(self) -> Counter[str]:  # type: ignore[override]
        """The system calls: what a receiver's time is made of."""
        return self.calls

    def __repr__(self) -> str:
        subvolumes = plural(len(self.subvolumes), "subvolume")
        return f"ReceiveResult({subvolumes}, {sum(self.commands.values()):,} commands)"

    def _repr_html_(self) -> str:
        paths = [[path] for path in self.subvolumes]
        return (
            f"<p>{escape(repr(self))}</p>"
            f"{html_table('subvolumes', [], paths, len(paths))}"
            f"{counts_table('command', self.commands)}{counts_table('system call', self.calls)}"
        )


@checked
@exclusive
def receive(
    fs: WritableFilesystem, stream: Source, directory: str | bytes = "", *, sync: bool = True
) -> ReceiveResult:
    """Carry out the commands of a send stream, as ``btrfs receive`` does, and sync.

    Parameters
    ----------
    fs : WritableFilesystem
        The filesystem.
    stream : path, bytes-like or file object
        One stream or several, one behind the other, of version 1 to 3.
    directory : str or bytes
        Where the subvolumes are made, a path from the top of the filesystem.
    sync : bool
        Without it what waits for writeback waits on, as after ``btrfs receive``: files that a
        later FIEMAP writes back first (``fiemap_mounted(fs, path, sync=True)``) lie elsewhere.

    Returns
    -------
    ReceiveResult
        What was received, and what was done for it.

    Raises
    ------
    ReceiveError
        For a command that cannot be carried out: a parent that is not there (``ENOENT``), a
        subvolume that is there already (``EEXIST``), a path that does not exist ... The filesystem
        is as it was before that command; the subvolume, unfinished, stays writable.
    StreamError
        When the stream is broken; likewise.
    OSError
        When the stream cannot be read, or `directory` is no directory.
    """
    try:
        result = apply_stream(fs, stream, directory)
    except BaseException:
        # after damage there is no commit any more
        if sync and not fs.aborted:
            fs.sync()
        raise
    if sync:
        fs.sync()
    return result


@no_gc()
def apply_stream(
    fs: WritableFilesystem, stream: Source, directory: str | bytes = ""
) -> ReceiveResult:
    """As :func:`receive`, but what waits for writeback waits on, as after ``btrfs receive``."""
    receiver = Receiver(fs, directory)
    place: tuple[Batch, int] | None = None
    try:
        for batch in read_batches(stream):
            receiver.begin_batch(batch)
            at = 0
            while at < len(batch):
                place = batch, at
                try:
                    done = receiver.process_inodes(at)
                    if not done:
                        receiver.process(command_of(*place))
                except OSError as error:
                    raise _failed(stream, place, error) from error
                at += done or 1
        # one without an end
        try:
            receiver.finish_subvol()
        except OSError as error:
            raise _failed(stream, place, error) from error
    finally:
        receiver.close_inode_for_write()
    names = [command.name for command in COMMANDS.values()]
    return ReceiveResult(
        [path.decode("utf-8", "surrogateescape") for path in receiver.received],
        {name: receiver.counts[name] for name in names if receiver.counts[name]},
        receiver.calls.counts,
    )


def _failed(stream: Source, place: tuple[Batch, int] | None, error: OSError) -> ReceiveError:
    """Say of an error at which command of the stream it came."""
    name, offset = "stream", 0
    if place is not None:
        command = command_of(*place)
        name, offset = command.name, command.offset
    number, why = error.errno or 0, f"{name} {_reason(error)}"
    return ReceiveError(name_of(stream), offset, name, number, why)


def _reason(error: OSError) -> str:
    if isinstance(error, BtrfsModelError):
        # damage of the image, with its place
        return f"failed: {error}"
    what = f"failed: {error.strerror}"
    if error.filename is None:
        return what
    path = error.filename
    shown = path if isinstance(path, str) else bytes(path).decode("utf-8", "surrogateescape")
    return f"{shown!r} {what}"
