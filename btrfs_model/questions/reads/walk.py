# SPDX-License-Identifier: GPL-2.0-only
"""Which tree blocks a cold kernel reads, in which order, on demand or ahead.

A block counts as cached from the moment its read is submitted, so the table is the order in which
reads are *submitted*, which is what a trace of the block layer shows. Data of files is not in it.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import replace
from functools import cache, wraps
from typing import TYPE_CHECKING, Any, ParamSpec

import numpy as np

from btrfs_model.base.arguments import checked, warn_renamed
from btrfs_model.base.errors import CorruptImageError
from btrfs_model.cost.answer import Cold, physical_of
from btrfs_model.cost.device import Device, load
from btrfs_model.cost.machine import Machine, chosen
from btrfs_model.cost.prediction import predict
from btrfs_model.cost.reading import Reading
from btrfs_model.cost.table import Table
from btrfs_model.limits import Limits
from btrfs_model.native.image import READ
from btrfs_model.native.lease import exclusive
from btrfs_model.ondisk.keys import ItemType
from btrfs_model.patches import KERNEL
from btrfs_model.questions.reads.cold import open_root
from btrfs_model.questions.send.ioctl import amounts_of, prepare, run
from btrfs_model.questions.send.ioctl import reads as reads_of_send
from btrfs_model.volume.blocks import ReadBy, ReadCache
from btrfs_model.volume.ctree import Reada
from btrfs_model.volume.filesystem import opening, reopened

if TYPE_CHECKING:
    import pandas as pd
    from numpy.typing import NDArray

    from btrfs_model.behaviour import Behaviour
    from btrfs_model.questions.send.request import SendRequest
    from btrfs_model.volume.filesystem import Filesystem
    from btrfs_model.volume.image import Image
    from btrfs_model.volume.subvolume import Subvolume

P = ParamSpec("P")

_ISSUERS = [by.name for by in ReadBy]
# the entries "." and ".." have no items
_FIRST_INDEX = 2
_MAX = 2**64 - 1


class Reads(Table):
    """Reads of tree blocks: a DataFrame with the ``work`` of what they are for, and its ``time()``.

    The work is counted when it is asked for.
    """

    _metadata = [*Table._metadata, "_cold"]  # noqa: RUF012 (as pandas wants it)
    _cold: Cold

    @classmethod
    def made(cls, rows: pd.DataFrame, cold: Cold, work: Callable[[], Mapping[str, int]]) -> Reads:
        """Add to rows where they lie, and the work."""
        table = cls.of(rows, work, lambda: (work(), cold))
        table._cold = cold
        return table

    @checked
    def on(
        self,
        device: str | Device,
        parameters: Mapping[str, object] | None = None,
        *,
        think: float | None = None,
        machine: str | Machine | None = None,
    ) -> Reads:
        """Do the reads on a device, by a thread that computes between them.

        Parameters
        ----------
        device : str or Device
            A name of :func:`btrfs_model.cost.device.names`, e.g. ``"deskstar-7k500"``, or the path
            of a file.
        parameters : mapping, optional
            Parameters other than those of its file, e.g. ``{"queue_depth": 1}``.
        think : float, optional
            Microseconds that the kernel computes for each leaf that it comes to. Without it they
            follow from the work of the send on `machine`; a listing has no cost, and computes
            nothing.
        machine : str or Machine, optional
            The machine that computes: a name of :func:`btrfs_model.cost.machine.names` or the path
            of a file; the native one without it.

        Returns
        -------
        Reads
            The same, and ``issued``, ``done`` and ``needed`` (when the kernel came to the block: in
            flight still, where ``done`` is later; -1: never), nanoseconds from the start. ``attrs``
            has the totals: ``seconds``, ``waited`` (seconds of it), ``requests`` (that the device
            got, after merging), ``buffered`` (that began in the drive's buffer), ``seeks`` (that
            moved its arm), and where a machine computes ``time``: what
            :meth:`btrfs_model.cost.prediction.Prediction.as_dict` gives.

        Raises
        ------
        BtrfsModelError
            For a device or machine that there is not, or a device that is too small.
        UnsupportedError
            Where the filesystem has several devices.
        ValueError
            When a machine is named for a listing, or together with `think`, or parameters together
            with a :class:`Device`.
        """
        if parameters and not isinstance(device, str):
            raise ValueError("parameters go with the name of a device")
        if machine is not None and (think is not None or not self.work):
            raise ValueError("a machine computes for a send, where no think is named")
        on = self._cold.on(load(device, parameters) if isinstance(device, str) else device)
        time = None
        if think is None and self.work:
            time = predict(chosen(machine), {**self.work, **self._cold.amounts}, on.waits)
            think = on.think(time.computed)
        table = with_times(self.table, on, think or 0.0)
        if time is not None:
            table.attrs["seconds"], table.attrs["time"] = time.seconds, time.as_dict()
        return self.made(table, self._cold, self._work)


def _as_before(call: Callable[P, Reads]) -> Callable[P, Reads]:
    """Let `reads` take what :meth:`Reads.on` and :func:`readdir_reads` take, for one release."""

    @wraps(call)
    def reads(*args: P.args, **kwargs: P.kwargs) -> Reads:
        names = ("device", "parameters", "think", "machine", "readdir")
        old = {name: kwargs.pop(name, None) for name in names}
        given: dict[str, Any] = {name: it for name, it in old.items() if it is not None}
        ask: Callable[..., Reads] = call
        if "readdir" in given:
            warn_renamed("reads(readdir=)", "readdir_reads(directory=)")
            ask = readdir_reads
            kwargs["directory"] = given.pop("readdir")
            kwargs.pop("behaviour", None)
        for name in given:
            warn_renamed(f"reads({name}=)", f"reads(...).on({name}=)")
        table = ask(*args, **kwargs)
        return table.on(**given) if given else table

    return reads


@_as_before
@checked
@opening
@exclusive
def reads(
    fs: Filesystem,
    subvolume: str | bytes | int | Subvolume,
    *,
    behaviour: str | Behaviour = KERNEL,
    parent: str | bytes | int | Subvolume | None = None,
    clone_sources: Iterable[str | bytes | int | Subvolume] | None = None,
    cached: Iterable[int] = (),
    limits: Limits | Mapping[str, int] | None = None,
) -> Reads:
    """Return the reads of tree blocks by a send.

    The kernel first gets the roots of the clone sources and of the parent into memory
    (``btrfs_get_root_ref()``); that reads nothing where `cached` has those blocks.

    Parameters
    ----------
    fs : Filesystem, str, os.PathLike or sequence of them
        An open filesystem, or the files it is in.
    subvolume : str, bytes, int or Subvolume
        What to send, which has to be read-only: a path from the top of the filesystem or an id.
    behaviour : str or Behaviour
        The kernel, e.g. ``"v6.12 - send-reada-always"``.
    parent : str, bytes, int or Subvolume, optional
        Send the difference to this snapshot.
    clone_sources : iterable of str, bytes, int or Subvolume, optional
        Snapshots that data may be cloned from; without it the parent, ``()`` for none, see
        :func:`btrfs_model.questions.send.ioctl.send`.
    cached : iterable of int
        Logical addresses of the tree blocks that are in memory at the start.
        :func:`btrfs_model.questions.reads.cold.blocks_after_mount` tells what a mount leaves there.
    limits : Limits or mapping, optional
        Limits other than those of kernels: arguments of :class:`btrfs_model.limits.Limits`, e.g.
        ``{"always_leaves": 1 << 20}``.

    Returns
    -------
    Reads
        A DataFrame, whose :meth:`Reads.on` does the reads on a device. A row for each block, in the
        order of submission: ``logical``, ``physical`` (of the first copy; bytes; where there are
        several devices after its ``devid``, and of the first copy that is there: which one a kernel
        reads hangs on the number of its process), ``level``, ``kind`` (``"demand"`` or
        ``"ahead"``), ``issued_by`` (function of the kernel), ``used`` (whether anything came to the
        block, when it was read or later). The index is the sequence of submission.

    Raises
    ------
    OSError
        Where the kernel fails, see :func:`btrfs_model.questions.send.ioctl.send`.
    SubvolumeNotFoundError
        When there is no such subvolume.
    NotCommittedError
        When there is one, but not in the last commit.
    CorruptImageError
        When the image is broken where the operation looks.
    ValueError
        When a limit is negative, or `cached` holds what is no address.
    """
    limits, cached = Limits.of(limits), _addresses(cached)
    of_send = None if clone_sources is None else [fs.subvolume(one).id for one in clone_sources]
    sent = fs.subvolume(subvolume).id, None if parent is None else fs.subvolume(parent).id

    def asked(now: Filesystem, *, counted: bool) -> tuple[NDArray[Any], Mapping[str, int]]:
        request = prepare(now, *sent, of_send, behaviour=behaviour, limits=limits,
                          write=lambda data: None)  # fmt: skip
        return reads_and_work(request, cached, counted=counted)

    @cache
    def work() -> Mapping[str, int]:
        with reopened(fs) as now:
            return asked(now, counted=True)[1]

    cold = Cold.of(fs.image, asked(fs, counted=False)[0])
    return Reads.made(read_table(fs.image, cold.rows), cold, work)


@checked
@opening
@exclusive
def readdir_reads(
    fs: Filesystem,
    subvolume: str | bytes | int | Subvolume,
    directory: str | bytes = "",
    *,
    cached: Iterable[int] = (),
    limits: Limits | Mapping[str, int] | None = None,
) -> Reads:
    """Return the reads of tree blocks by the listing of a directory.

    It is open already and listed to its end: ``btrfs_real_readdir()`` goes through its DIR_INDEX
    items and reads leaves ahead (READA_FORWARD). All kernels from 5.10 to 6.18 do it alike.

    Parameters
    ----------
    fs : Filesystem, str, os.PathLike or sequence of them
        An open filesystem, or the files it is in.
    subvolume : str, bytes, int or Subvolume
        Where the directory is: a path from the top of the filesystem or an id.
    directory : str or bytes
        Its path in the subvolume, ``""`` for the top.
    cached, limits
        As for :func:`reads`.

    Returns
    -------
    Reads
        As of :func:`reads`, without work.

    Raises
    ------
    OSError
        ENOTDIR when it is no directory.
    SubvolumeNotFoundError, NoSuchFileError, NotCommittedError, CorruptImageError, ValueError
        As :func:`reads`.
    """
    sub, image = fs.subvolume(subvolume), fs.image
    limits, cached = Limits.of(limits), _addresses(cached)
    inode = sub.resolve(directory)
    if not stat.S_ISDIR(sub.inode(inode).mode):
        why = f"{os.strerror(errno.ENOTDIR)}: inode {inode} of subvolume {sub.id}"
        raise OSError(errno.ENOTDIR, why, image.path)
    image.start_cold(cached, limits)
    try:
        sub.tree.visit_leaves(
            (inode, ItemType.DIR_INDEX, _FIRST_INDEX),
            (inode, ItemType.DIR_INDEX, _MAX),
            Reada.FORWARD,
        )
    finally:
        rows = image.stop_cold()
    return Reads.made(read_table(image, rows), Cold.of(image, rows), dict)


def _addresses(cached: Iterable[int]) -> list[int]:
    """Refuse what is no address of a block."""
    addresses = list(cached)
    for address in addresses:
        if not 0 <= address <= _MAX:
            raise ValueError(f"{address} is no address of a block")
    return addresses


def reads_and_work(
    request: SendRequest, cached: Iterable[int], *, counted: bool
) -> tuple[NDArray[Any], Mapping[str, int]]:
    """Return the reads of a send; where it is to be `counted`, what costs are paid for as well."""
    image, cache = request.fs.image, ReadCache(cached, request.limits)
    with image.lease:
        image.reads = cache
        try:
            parents = [] if request.parent is None else [request.parent]
            for source in [*request.clone_sources, *parents]:
                open_root(request.fs, source)
        finally:
            image.reads = None
    before = np.array(cache.cache_reads(), dtype=READ)
    work: Mapping[str, int] = {}
    if counted:
        sizes: list[int] = []
        weighed = replace(request, write=lambda data: sizes.append(len(data)))
        _, counted_work, rows = run(weighed, cache.held)
        work = amounts_of(counted_work, sum(sizes))
    else:
        rows = reads_of_send(request, cache.held)
    if not len(before):
        return rows, work
    # one count of events for both
    rows["used_at"][rows["used"] != 0] += cache.events
    return np.concatenate([before, rows]), work


def _places(image: Image, read: NDArray[Any]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the devid, and the byte of the device, of the first copy of each block that is there.

    The devid is -1 for what goes to no device, and 0 for what parity makes, the byte then is -1.
    """
    if not image.has_several:
        physical = physical_of(image, read)
        return np.where(physical < 0, -1, image.devices[0].devid), physical
    found = np.full((2, len(read)), -1, np.int64)
    for row, logical in enumerate(read["logical"].tolist()):
        # what a damaged node points at is asked for ahead, but goes to no device
        chunk = image.chunk_at(logical)
        found[0, row] = 0 if chunk else -1
        for copy in range(chunk.placed if chunk else 0):
            with suppress(CorruptImageError):
                found[:, row] = image.byte_of_device(image.map(logical, copy)[0])
                break
    return found[0], found[1]


def read_table(image: Image, read: NDArray[Any]) -> pd.DataFrame:
    """Return reads as a table, see :func:`reads`."""
    import pandas as pd

    devid, physical = _places(image, read)
    mapped = devid >= 0
    if not mapped.all():
        read, devid, physical = read[mapped], devid[mapped], physical[mapped]
    return pd.DataFrame(
        {
            "logical": read["logical"].astype(np.int64),
            **({"devid": devid} if image.has_several else {}),
            "physical": physical,
            "level": read["level"].astype(np.int64),
            "kind": pd.Series(["demand", "ahead"]).array.take(read["ahead"].astype(np.int64)),
            "issued_by": pd.Series(_ISSUERS).array.take(read["by"].astype(np.int64)),
            "used": read["used"].astype(bool),
        },
        index=pd.RangeIndex(len(read), name="sequence"),
    )


def with_times(table: pd.DataFrame, on: Reading, think: float) -> pd.DataFrame:
    """Add when a device does the reads, see :meth:`Reads.on`; `think`: microseconds for a leaf."""
    times, totals = on.run(think)
    times = times[on.there]
    table = table.assign(
        issued=times["issued"].astype(np.int64),
        done=times["done"].astype(np.int64),
        needed=times["needed"],
    )
    table.attrs["seconds"], table.attrs["waited"] = totals.end / 1e9, totals.waited / 1e9
    table.attrs.update(requests=totals.requests, buffered=totals.buffered, seeks=totals.seeks)
    return table
