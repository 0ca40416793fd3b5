# SPDX-License-Identifier: GPL-2.0-only
"""Which tree blocks a cold kernel reads, in which order, on demand or ahead.

A block counts as cached from the moment its read is submitted, so the table is the order in which
reads are *submitted*, which is what a trace of the block layer shows. Data of files is not in it.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import replace
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np

from btrfs_model.base.arguments import checked
from btrfs_model.base.errors import CorruptImageError
from btrfs_model.cost.answer import Cold, physical_of
from btrfs_model.cost.device import Device, load
from btrfs_model.cost.machine import Machine, chosen, predict
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

_ISSUERS = [by.name for by in ReadBy]
# the entries "." and ".." have no items
_FIRST_INDEX = 2
_MAX = 2**64 - 1


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
    readdir: str | bytes | None = None,
    cached: Iterable[int] = (),
    limits: Limits | Mapping[str, int] | None = None,
    device: str | Device | None = None,
    parameters: Mapping[str, object] | None = None,
    think: float | None = None,
    machine: str | Machine | None = None,
) -> Table:
    """Return the reads of tree blocks by a send, or by the listing of a directory.

    The kernel first gets the roots of the clone sources and of the parent into memory
    (``btrfs_get_root_ref()``); that reads nothing where `cached` has those blocks.

    A directory is open already and listed to its end: ``btrfs_real_readdir()`` goes through its
    DIR_INDEX items and reads leaves ahead (READA_FORWARD). All kernels from 5.10 to 6.18 do it
    alike.

    Parameters
    ----------
    fs : Filesystem, str, os.PathLike or sequence of them
        An open filesystem, or the files it is in.
    subvolume : str, bytes, int or Subvolume
        What to send, then it has to be read-only, or where the directory is: a path from the top
        of the filesystem or an id.
    behaviour : str or Behaviour
        The kernel, e.g. ``"v6.12 - send-reada-always"``.
    parent : str, bytes, int or Subvolume, optional
        Send the difference to this snapshot.
    clone_sources : iterable of str, bytes, int or Subvolume, optional
        Snapshots that data may be cloned from; without it the parent, ``()`` for none, see
        :func:`btrfs_model.questions.send.ioctl.send`.
    readdir : str or bytes, optional
        List this directory of the subvolume, ``""`` for the top, instead of sending.
    cached : iterable of int
        Logical addresses of the tree blocks that are in memory at the start.
        :func:`btrfs_model.questions.reads.cold.blocks_after_mount` tells what a mount leaves there.
    limits : Limits or mapping, optional
        Limits other than those of kernels: arguments of :class:`btrfs_model.limits.Limits`, e.g.
        ``{"always_leaves": 1 << 20}``.
    device : str or Device, optional
        Do the reads on this device: a name of :func:`btrfs_model.cost.device.names`, e.g.
        ``"deskstar-7k500"``, or the path of a file.
    parameters : mapping, optional
        Parameters of the device other than those of its file, e.g. ``{"queue_depth": 1}``.
    think : float, optional
        Microseconds that the kernel computes for each leaf that it comes to. Without it they follow
        from the work of the send on `machine`; a listing has no cost, and computes nothing.
    machine : str or Machine, optional
        The machine that computes: a name of :func:`btrfs_model.cost.machine.names` or the path of a
        file; the native one without it.

    Returns
    -------
    Table
        A DataFrame, with the ``work`` of the send, which is counted when it is asked for, and its
        ``time()``. A row for each block, in the order of submission: ``logical``, ``physical`` (of
        the first copy; bytes; where there are several devices after its ``devid``, and of the first
        copy that is there: which one a kernel reads hangs on the number of its process), ``level``,
        ``kind`` (``"demand"`` or ``"ahead"``), ``issued_by`` (function of the kernel), ``used``
        (whether anything came to the block, when it was read or later). The index is the sequence
        of submission. With a device also ``issued``, ``done`` and ``needed`` (when the kernel came
        to the block: in flight still, where ``done`` is later; -1: never), nanoseconds from the
        start, and in ``attrs`` the totals: ``seconds``, ``waited`` (seconds of it), ``requests``
        (that the device got, after merging), ``buffered`` (that began in the drive's buffer),
        ``seeks`` (that moved its arm), and where a machine computes ``time``: what
        :meth:`btrfs_model.cost.machine.Prediction.as_dict` gives.

    Raises
    ------
    OSError
        Where the kernel fails, see :func:`btrfs_model.questions.send.ioctl.send`; ENOTDIR for a
        listing of what is no directory.
    SubvolumeNotFoundError, NoSuchFileError
        When there is no such subvolume or directory.
    NotCommittedError
        When there is one, but not in the last commit.
    CorruptImageError
        When the image is broken where the operation looks.
    ValueError
        When a directory is to be listed and a parent or clone sources are named, a limit is
        negative, or `cached` holds what is no address.
    """
    limits, cached = Limits.of(limits), list(cached)
    for address in cached:
        if not 0 <= address <= _MAX:
            raise ValueError(f"{address} is no address of a block")
    device = _device_of(device, parameters, think, machine, readdir)
    if readdir is None:
        of_send = None if clone_sources is None else [fs.subvolume(one).id for one in clone_sources]
        sent = fs.subvolume(subvolume).id, None if parent is None else fs.subvolume(parent).id

        def ask(now: Filesystem) -> SendRequest:
            return prepare(now, *sent, of_send, behaviour=behaviour, limits=limits,
                           write=lambda data: None)  # fmt: skip

        rows, work = reads_and_work(ask(fs), cached, counted=device is not None and think is None)
    elif parent is None and clone_sources is None:
        rows, work = _readdir(fs.subvolume(subvolume), readdir, cached, limits), {}
    else:
        raise ValueError("a parent and clone sources go with a send, not with readdir")
    cold = Cold.of(fs.image, rows)
    table = _on_device(fs.image, cold, device, think, machine, work)

    @cache
    def counted() -> Mapping[str, int]:
        if work or readdir is not None:
            return work
        with reopened(fs) as now:
            return reads_and_work(ask(now), cached, counted=True)[1]

    return Table.of(table, counted, lambda: (counted(), cold))


def _device_of(
    device: str | Device | None,
    parameters: Mapping[str, object] | None,
    think: float | None,
    machine: str | Machine | None,
    readdir: str | bytes | None,
) -> Device | None:
    """Return the device that reads are done on; what is wrong with it shows before the work."""
    if device is None and (parameters or think is not None or machine is not None):
        raise ValueError("parameters, think and machine go with a device")
    if machine is not None and (think is not None or readdir is not None):
        raise ValueError("a machine computes for a send, where no think is named")
    if isinstance(device, str):
        return load(device, parameters)
    if parameters:
        raise ValueError("parameters go with the name of a device")
    return device


def _on_device(
    image: Image,
    cold: Cold,
    device: Device | None,
    think: float | None,
    machine: str | Machine | None,
    work: Mapping[str, int],
) -> pd.DataFrame:
    """Return reads as a table, done on a device where there is one."""
    on = None if device is None else cold.on(device)
    if on is None or not work:
        return read_table(image, cold.rows, on, think or 0.0)
    time = predict(chosen(machine), {**work, **cold.amounts}, on.waits)
    table = read_table(image, cold.rows, on, on.think(time.computed))
    table.attrs["seconds"], table.attrs["time"] = time.seconds, time.as_dict()
    return table


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


def _readdir(
    subvolume: Subvolume, directory: str | bytes, cached: Iterable[int], limits: Limits
) -> NDArray[Any]:
    inode, image = subvolume.resolve(directory), subvolume.fs.image
    if not stat.S_ISDIR(subvolume.inode(inode).mode):
        why = f"{os.strerror(errno.ENOTDIR)}: inode {inode} of subvolume {subvolume.id}"
        raise OSError(errno.ENOTDIR, why, image.path)
    image.start_cold(cached, limits)
    try:
        subvolume.tree.visit_leaves(
            (inode, ItemType.DIR_INDEX, _FIRST_INDEX),
            (inode, ItemType.DIR_INDEX, _MAX),
            Reada.FORWARD,
        )
    finally:
        rows = image.stop_cold()
    return rows


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


def read_table(
    image: Image, read: NDArray[Any], on: Reading | None = None, think: float = 0.0
) -> pd.DataFrame:
    """Return reads as a table, see :func:`reads`; `think`: microseconds for each leaf."""
    import pandas as pd

    devid, physical = _places(image, read)
    mapped = devid >= 0
    times = None
    if on is not None:
        times, totals = on.run(think)
    if not mapped.all():
        read, devid, physical = read[mapped], devid[mapped], physical[mapped]
        times = None if times is None else times[mapped]
    table = pd.DataFrame(
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
    if times is not None:
        table["issued"] = times["issued"].astype(np.int64)
        table["done"] = times["done"].astype(np.int64)
        table["needed"] = times["needed"]
        table.attrs["seconds"], table.attrs["waited"] = totals.end / 1e9, totals.waited / 1e9
        table.attrs.update(requests=totals.requests, buffered=totals.buffered, seeks=totals.seeks)
    return table
