# SPDX-License-Identifier: GPL-2.0-only
"""The ioctl: which sends are refused, what is in memory when one starts, where the stream goes."""

from __future__ import annotations

import errno
import io
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from html import escape
from typing import TYPE_CHECKING, Any, BinaryIO

from btrfs_model.base.arguments import checked
from btrfs_model.base.counters import Work, counting
from btrfs_model.base.errors import BtrfsModelError
from btrfs_model.base.tables import counts_frame, counts_table, html_table
from btrfs_model.behaviour import Behaviour
from btrfs_model.cost.answer import Answer, Cold
from btrfs_model.limits import Limits
from btrfs_model.native.choice import twin
from btrfs_model.native.lease import exclusive
from btrfs_model.patches import KERNEL, Patch
from btrfs_model.questions.reads.cold import blocks_after_mount
from btrfs_model.questions.send import native
from btrfs_model.questions.send.explain import Explanation, by_cause
from btrfs_model.questions.send.request import SendRequest
from btrfs_model.questions.send.sources import sources_table
from btrfs_model.volume.filesystem import opening

if TYPE_CHECKING:
    import pandas as pd
    from numpy.typing import NDArray

    from btrfs_model.cost.answer import Waits
    from btrfs_model.cost.device import Device
    from btrfs_model.native.send import Known
    from btrfs_model.ondisk.layout import Payload
    from btrfs_model.volume.filesystem import Filesystem
    from btrfs_model.volume.subvolume import Subvolume


@dataclass(frozen=True, repr=False)
class SendResult(Answer):
    """What a send did.

    Attributes
    ----------
    data : bytes or None
        The stream, when it was not written to a file and not estimated.
    size : int
        Bytes of the stream.
    commands : dict of str to int
        How many commands of each kind, in the order of their numbers.
    work : Work
        The work counted, as by a kernel that has just mounted the filesystem.
    causes : pandas.DataFrame or None
        Why each command was sent, when that was asked for. A row for each, in the order of the
        stream: ``offset`` and ``length`` in bytes, ``command``, ``path`` (str, bytes that are not
        UTF-8 as surrogates), ``inode`` that it is about, ``cause`` (a rule of
        :data:`btrfs_model.questions.send.causes.CAUSES`) and the kernel's ``function`` with that
        rule, the key of the item that differed (``item_objectid``, ``item_type``, ``item_offset``)
        and its ``change``: new, deleted, changed, or same where what stood before it is gone.
        Commands that come from no item have an empty `item_type` and `change`.
    sources : pandas.DataFrame or None
        With `causes`: the places that extents might be cloned from. A row for each place: of the
        extent ``offset`` in the stream, of its first command, ``path``, ``inode`` and
        ``file_offset``; of the place the subvolume (``source``), ``source_inode``,
        ``source_offset`` and ``source_length``; and what became of it, ``reason``, one of
        :data:`btrfs_model.questions.send.causes.VERDICTS`. Of a read-only
        subvolume that is no clone source one place stands there, and only for extents that were
        cloned from none.
    cold : Cold or None
        The tree blocks that it read after the mount, for :meth:`time` on a device.
    """

    data: bytes | None
    size: int
    commands: dict[str, int]
    work: Work
    causes: pd.DataFrame | None = None
    sources: pd.DataFrame | None = None
    cold: Cold | None = field(default=None, compare=False)

    @property
    def table(self) -> pd.DataFrame:
        """A row for each kind of command: ``command``, ``count``, in the order of their numbers."""
        return counts_frame("command", self.commands)

    def waiting(self, device: Device) -> tuple[Mapping[str, int], Waits]:
        """See :class:`~btrfs_model.cost.answer.Answer`."""
        assert self.cold is not None
        return {**self.amounts, **self.cold.amounts}, self.cold.on(device).waits

    @property
    def amounts(self) -> dict[str, int]:
        """What costs are paid for, see :func:`amounts_of`."""
        return amounts_of(self.work, self.size)

    def __repr__(self) -> str:
        return f"SendResult({self.size:,} bytes, {sum(self.commands.values()):,} commands)"

    def _repr_html_(self) -> str:
        shown = f"<p>{escape(repr(self))}</p>{counts_table('command', self.commands)}"
        if self.causes is not None:
            columns = by_cause(self.causes)[["cause", "commands", "bytes", "why"]]
            shown += html_table(
                "causes", columns.columns.tolist(), columns.values.tolist(), len(columns)
            )
        return shown + self.work._repr_html_()


class _Sink:
    """Where the stream goes: a file, or memory."""

    def __init__(self, to: BinaryIO | None, *, keep: bool) -> None:
        self.to = to
        self.keep = keep
        self.parts: list[bytes] = []
        self.size = 0

    def write(self, data: Payload) -> None:
        """Take a piece; all of it, as ``write_buf()`` does."""
        self.size += len(data)
        if not self.keep:
            return
        if self.to is None:
            self.parts.append(bytes(data))
        elif type(self.to) is io.FileIO:
            while data:
                written = self.to.write(data)
                if written is None:
                    raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN))
                data = data[written:]
        else:
            # others may keep what they are given
            self.to.write(data if type(self.to) is io.BufferedWriter else bytes(data))

    def pass_over(self, size: int) -> None:
        """Count what nobody looks at."""
        self.size += size

    def data(self) -> bytes | None:
        return b"".join(self.parts) if self.to is None and self.keep else None


def _refuse(fs: Filesystem, number: int, why: str) -> OSError:
    return OSError(number, f"{os.strerror(number)}: {why}", fs.path)


def _stream_version(fs: Filesystem, behaviour: Behaviour, proto: int) -> int:
    """Check the version asked for; 0 is the highest that the kernel has."""
    if Patch.SEND_STREAM_V2 not in behaviour:
        # such a kernel knows no flag for the version
        if proto != 1:
            raise _refuse(fs, errno.EINVAL, f"{behaviour} has stream version 1 only")
        return 1
    highest = 3 if Patch.SEND_VERITY in behaviour else 2
    if not 0 <= proto <= highest:
        raise _refuse(fs, errno.EPROTO, f"{behaviour} has stream versions up to {highest}")
    return proto or highest


@checked
@opening
@exclusive
def send(
    fs: Filesystem,
    snapshot: str | bytes | int | Subvolume,
    parent: str | bytes | int | Subvolume | None = None,
    clone_sources: Iterable[str | bytes | int | Subvolume] | None = None,
    *,
    behaviour: str | Behaviour = KERNEL,
    limits: Limits | Mapping[str, int] | None = None,
    proto: int = 1,
    no_file_data: bool = False,
    compressed: bool = False,
    omit_header: bool = False,
    omit_end: bool = False,
    explain: bool = False,
    estimate: bool = False,
    to: BinaryIO | None = None,
    cached: Iterable[int] = (),
) -> SendResult:
    """Send a read-only subvolume as ``BTRFS_IOC_SEND`` does.

    Parameters
    ----------
    fs : Filesystem, str, os.PathLike or sequence of them
        An open filesystem, or the files it is in.
    snapshot : str, bytes, int or Subvolume
        What to send: a path from the top of the filesystem or an id.
    parent : str, bytes, int or Subvolume, optional
        Send the difference to this snapshot.
    clone_sources : iterable of str, bytes, int or Subvolume, optional
        Snapshots that data may be cloned from: exactly the list that the kernel gets, where a
        parent is a clone source only when it is named. Without it the parent, as
        ``btrfs send -p`` has it; ``()`` for none.
    behaviour : str or Behaviour
        The kernel, e.g. ``"v6.12 - send-utimes-cache"``.
    limits : Limits or mapping, optional
        Sizes of its caches and windows other than kernels have them: arguments of
        :class:`btrfs_model.limits.Limits`, e.g. ``{"dir_utimes_cache": 4}``.
    proto : int
        Version of the stream; 0 for the highest that the kernel has.
    no_file_data : bool
        UPDATE_EXTENT instead of WRITE.
    compressed : bool
        Send compressed extents as they are; wants ``proto=2``.
    omit_header, omit_end : bool
        Leave out the header and the END command.
    explain : bool
        Note why each command is sent, and what it might be cloned from: ``result.causes`` and
        ``result.sources``.
    estimate : bool
        Tell size, commands and work alone: exact, and no file data are read, so that a damaged one
        is not seen (the reference in Python reads them all the same). There is no stream, and
        nothing goes to `to`.
    to : binary file, optional
        Where to write the stream; without it ``result.data`` is the stream.
    cached : iterable of int
        Logical addresses of tree blocks that are in memory besides those that a mount leaves there.

    Returns
    -------
    SendResult
        Stream, commands and work.

    Raises
    ------
    OSError
        Where the kernel fails, with its errno (EPERM for a subvolume that is not read-only, EINVAL,
        EPROTO, ENOENT, EIO); commands that were sent before have been written to `to`, and are in
        the ``partial`` attribute of the error when there is no `to`.
    SubvolumeNotFoundError
        When there is no such subvolume.
    CorruptImageError
        When the image is broken where the send looks.
    ValueError
        For an estimate that shall be explained.
    """
    if estimate and explain:
        raise ValueError("explain: an estimate has no stream whose commands could be explained")
    sink = _Sink(to, keep=not estimate)
    request = prepare(
        fs, snapshot, parent, clone_sources, behaviour=behaviour, limits=limits,
        proto=proto, no_file_data=no_file_data, compressed=compressed, omit_header=omit_header,
        omit_end=omit_end, explain=explain, estimate=sink.pass_over if estimate else None,
        write=sink.write,
    )  # fmt: skip
    opened = [root for root in (request.snapshot, request.parent) if root is not None]
    try:
        there = blocks_after_mount(fs, opened, request.behaviour).union(cached)
        commands, work, reads = run(request, there)
    except OSError as error:
        error.partial = sink.data()  # type: ignore[attr-defined]
        raise
    explanation = request.explanation
    causes = sources = None
    if isinstance(explanation, Explanation):
        causes = explanation.table()
        sources = sources_table(request, explanation.places, causes)
    return SendResult(
        sink.data(), sink.size, commands, work, causes, sources, Cold.of(fs.image, reads)
    )  # fmt: skip


def sizes_of(
    fs: Filesystem,
    sends: Iterable[tuple[Subvolume, Subvolume | None, Iterable[Subvolume]]],
    known: Known | None,
    **how: Any,
) -> list[SendResult | OSError]:
    """Do as :func:`send` with ``estimate``, for many sends, with all blocks in memory.

    `sends`: of each the snapshot, the parent and the clone sources.
    `known`: what those before them found; all of one `fs`, and with the same `how`. None: nothing.
    `how`: further arguments of :func:`send`.
    Returns, for each, what it did, or the error that the kernel gives.
    Raises CorruptImageError: when the image is broken where a send looks.
    """
    asked: list[tuple[_Sink, SendRequest] | OSError] = []
    for snapshot, parent, clone_sources in sends:
        sink = _Sink(None, keep=False)
        try:
            request = prepare(
                fs, snapshot, parent, clone_sources, estimate=sink.pass_over, write=sink.write,
                **how,
            )  # fmt: skip
        except OSError as error:
            asked.append(error)
        else:
            asked.append((sink, replace(request, known=known)))
    sent = iter(_side_by_side([one[1] for one in asked if not isinstance(one, OSError)]))
    told: list[SendResult | OSError] = []
    for one in asked:
        if isinstance(one, OSError):
            told.append(one)
            continue
        result = next(sent)
        told.append(
            result if isinstance(result, OSError) else SendResult(None, one[0].size, *result)
        )
    return told


def prepare(
    fs: Filesystem,
    snapshot: str | bytes | int | Subvolume,
    parent: str | bytes | int | Subvolume | None = None,
    clone_sources: Iterable[str | bytes | int | Subvolume] | None = None,
    *,
    behaviour: str | Behaviour = KERNEL,
    limits: Limits | Mapping[str, int] | None = None,
    proto: int = 1,
    no_file_data: bool = False,
    compressed: bool = False,
    omit_header: bool = False,
    omit_end: bool = False,
    explain: bool = False,
    estimate: Callable[[int], object] | None = None,
    write: Callable[[Payload], object],
) -> SendRequest:
    """Check what is asked for as the ioctl does before it starts; see :func:`send`."""
    kernel = Behaviour.parse(behaviour)
    subvolume = fs.subvolume(snapshot)
    if not subvolume.is_read_only:
        raise _refuse(fs, errno.EPERM, f"subvolume {subvolume.id} is not read-only")
    if compressed and Patch.SEND_STREAM_V2 not in kernel:
        raise _refuse(fs, errno.EINVAL, f"{kernel} cannot send compressed data")
    version = _stream_version(fs, kernel, proto)
    if compressed and version < 2:
        raise _refuse(fs, errno.EINVAL, "compressed data wants stream version 2")
    if clone_sources is None:
        clone_sources = [] if parent is None else [parent]
    sources = [fs.subvolume(which) for which in clone_sources]
    for source in sources:
        if not source.is_read_only:
            raise _refuse(fs, errno.EPERM, f"clone source {source.id} is not read-only")
    parent_root = None if parent is None else fs.subvolume(parent)
    if parent_root is not None and not parent_root.is_read_only:
        raise _refuse(fs, errno.EPERM, f"parent {parent_root.id} is not read-only")
    explanation = Explanation(version) if explain else None
    return SendRequest(
        fs,
        subvolume,
        parent_root,
        sources,
        kernel,
        Limits.of(limits).of_kernel(kernel),
        version,
        no_file_data,
        compressed,
        omit_header,
        omit_end,
        estimate,
        explanation.watch(write, header=not omit_header) if explanation else write,
        explanation,
    )


def amounts_of(work: Mapping[str, int], size: int) -> dict[str, int]:
    """Return what costs are paid for: the work of a send, and two quantities more.

    ``stream_bytes`` is the size of the stream, ``leaves_copied`` how many leaves were copied: each
    search of a send ends in a copy of its leaf, which it holds no lock of.
    """
    return {**work, "stream_bytes": size, "leaves_copied": work["btrfs_search_slot"]}


def run(request: SendRequest, cached: Iterable[int]) -> tuple[dict[str, int], Work, NDArray[Any]]:
    """Send.

    `request`: what to send.
    `cached`: addresses of the tree blocks that are in memory.
    Returns `commands`: how many of each kind.
    Returns `work`: the work counted.
    Returns `reads`: the tree blocks read, see :meth:`btrfs_model.volume.image.Image.stop_cold`.
    """
    image = request.fs.image
    image.start_cold(cached, request.limits)
    try:
        with counting() as work:
            commands = _send(request)
    finally:
        reads = image.stop_cold()
    return commands, work, reads


@twin("reference.send.send:send")
def _send(request: SendRequest) -> dict[str, int]:
    """Carry out a send; return the number of commands by name."""
    return native.send(request)


def sends_alone(requests: Sequence[SendRequest]) -> list[tuple[dict[str, int], Work] | OSError]:
    """Carry out one send after the other; return commands and work of each, or its error."""
    told: list[tuple[dict[str, int], Work] | OSError] = []
    for request in requests:
        try:
            with request.fs.image.lease, counting() as work:
                told.append((_send(request), work))
        except OSError as error:
            told.append(error)
    return told


@twin("questions.send.ioctl:sends_alone")
def _side_by_side(requests: Sequence[SendRequest]) -> list[tuple[dict[str, int], Work] | OSError]:
    """Do the same in turns: what one send looked at is still near when the next one does."""
    return native.side_by_side(requests)


def reads_of_send(request: SendRequest, cached: Iterable[int]) -> NDArray[Any]:
    """Return the tree blocks that :func:`run` reads."""
    return run(request, cached)[2]


@twin("questions.send.ioctl:reads_of_send")
def reads(request: SendRequest, cached: Iterable[int]) -> NDArray[Any]:
    """Return the tree blocks that :func:`run` reads, where possible without a send.

    Raises OSError, CorruptImageError: as :func:`send`.
    """
    addresses = list(cached)
    if request.parent is None:
        image, plain = request.fs.image, False
        image.start_cold(addresses, request.limits)
        try:
            # what is wrong shows in the same place again
            with counting(), suppress(BtrfsModelError, OSError):
                plain = native.walk(request)
        finally:
            rows = image.stop_cold()
        if plain:
            return rows
    return reads_of_send(request, addresses)
