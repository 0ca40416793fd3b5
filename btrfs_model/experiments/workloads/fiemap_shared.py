# SPDX-License-Identifier: GPL-2.0-only
"""The workload of "btrfs: skip backref walking during fiemap if we know the leaf is shared" (6.3).

The message's script writes a file of 40 GiB with compression, which gives 327,680 extents of 128
KiB each, and three more of 20 GiB beside it; a snapshot then shares all leaves. After a fresh mount
``filefrag`` maps the first file twice: with the metadata on disk, and with them in memory.

A built filesystem is mapped once more after one extent in a hundred was written again: then the
leaves of the file are not shared any more, but nearly all extents are.
"""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING, Final

import numpy as np

from btrfs_model.base.counters import Work, counting
from btrfs_model.behaviour import Behaviour
from btrfs_model.cost.answer import Cold
from btrfs_model.cost.device import Device
from btrfs_model.experiments.commits import load as load_message
from btrfs_model.experiments.workloads import (
    Case,
    Figure,
    Group,
    Input,
    Note,
    Outcome,
    Side,
    Step,
    Workload,
    counterparts,
    recorded,
    silent,
)
from btrfs_model.experiments.workloads.charts.evidence import Walks
from btrfs_model.experiments.workloads.fiemap_shared_build import EXTENT_BYTES, FILE, build, rewrite
from btrfs_model.experiments.workloads.knobs import Knobs
from btrfs_model.experiments.workloads.timed import MEMORY, Timed
from btrfs_model.limits import Limits
from btrfs_model.mount.writable import WritableFilesystem
from btrfs_model.ondisk.items import file_extent
from btrfs_model.ondisk.keys import ItemType, ObjectId
from btrfs_model.patches import Patch
from btrfs_model.questions.fiemap.api import FILEFRAG_EXTENTS, Fiemap
from btrfs_model.questions.reads.cold import blocks_after_mount
from btrfs_model.volume.blocks import HEADER
from btrfs_model.volume.data import FileExtent
from btrfs_model.volume.filesystem import Filesystem

if TYPE_CHECKING:
    from matplotlib import figure

BEFORE = Side("before", "v6.2")
AFTER = Side("after", "v6.2 + fiemap-shared-leaf")
DEVICES: Final = ("samsung-850-evo", "deskstar-7k500", "memory")
"""Where the cold reads go to. The first stands for the device of the message, which does not name
it; the kernels that were measured had theirs in memory."""
KERNELS = (Side("Linux 6.1", "v6.1.176"), Side("Linux 6.12", "v6.12.101"))
"""Kernels whose counts and reads were measured, the first without the commit."""
COMPARED = (BEFORE, AFTER, *KERNELS)

_EXTENTS = 327_680
_CACHES: Final = ("cold", "cached")
_SHARED: Final = 0x2000
_AS_BUILT: Final[Case] = {"rewritten": 0}
_COLD: Final[Case] = {"cache": "cold"}
_QUANTITIES: Final = {
    "find_parent_nodes": "saved: walks",
    "btrfs_search_slot": "saved: searches",
}


class FiemapShared(Workload):
    """See the module."""

    def build(self, size: Input, knobs: Knobs, step: Step = silent) -> WritableFilesystem:
        """See :meth:`.Workload.build`."""
        return build(size, knobs, step)

    def measure(
        self, fs: Filesystem, size: Input, side: Side, knobs: Knobs, step: Step = silent
    ) -> Outcome:
        """Map the file, cold and cached, before anything is written again."""
        outcome = Outcome([])
        _map_twice(outcome, fs, side, knobs.devices(DEVICES[0]), Limits.of(knobs.limits))
        return outcome

    def run(
        self, fs: Filesystem, size: Input, sides: tuple[Side, ...], knobs: Knobs,
        step: Step = silent,
    ) -> Outcome:  # fmt: skip
        """Map the file on each side, cold and cached; count walks, searches and block reads."""
        outcome = Outcome([])
        devices, limits = knobs.devices(*DEVICES), Limits.of(knobs.limits)
        shown = outcome.evidence = Walks(size.parameters["extents"], {}, {})
        for side in sides:
            step(f"{side.name}: FIEMAP")
            _map_twice(outcome, fs, side, devices, limits)
            if side in sides[:2]:
                shown.walks[side.name] = walks_of_a_call(fs, side.behaviour, limits)
                shown.along[side.name] = walks_along(fs, side.behaviour, limits)
        _add_savings(outcome, sides)
        if isinstance(fs, WritableFilesystem):
            step("writing some extents again")
            rewritten = rewrite(fs, size.parameters["extents"])
            for side in sides:
                step(f"{side.name}: FIEMAP after that")
                outcome.figures += _figures_rewritten(fs, side, rewritten, limits)
        pairs = counterparts(COMPARED, sides)
        if size.scale == 1:
            _add_reported(outcome, pairs)
        _add_measured(outcome, pairs, size)
        return outcome

    def draw(self, outcome: Outcome) -> figure.Figure:
        """See :meth:`.Workload.draw`."""
        from btrfs_model.experiments.workloads.charts.fiemap_shared import draw

        return draw(outcome)


def _map_twice(
    outcome: Outcome, fs: Filesystem, side: Side, devices: tuple[Device, ...], limits: Limits
) -> None:
    """Add figures of one side: extents, and for each of the two calls what is read and called."""
    behaviour = Behaviour.parse(side.behaviour)
    file = Fiemap(fs, "", FILE, behaviour=behaviour, limits=limits)
    fs.image.start_cold(blocks_after_mount(fs, [fs.subvolume("")], behaviour), limits)
    with counting() as cold:
        extents = len(file.run())
    reads = fs.image.stop_cold()
    with counting() as cached:
        file.run()
    trees = [_owner(fs, logical) for logical in reads["logical"].tolist()]
    in_extent_tree = trees.count(int(ObjectId.EXTENT_TREE))
    lie = Cold.of(fs.image, reads)
    # a thread that does nothing but read
    waits = {device.name: lie.on(device).waits(0.0) for device in devices}
    rows: list[tuple[str, str, Case, float]] = [
        ("extents found", "extents", {}, extents),
        ("ioctl calls", "calls", {}, cached["btrfs_fiemap"]),
        ("blocks read", "blocks", _COLD, len(reads)),
        ("blocks read: trees of files", "blocks", _COLD, len(reads) - in_extent_tree),
        ("blocks read: extent tree", "blocks", _COLD, in_extent_tree),
        ("blocks read: ahead", "blocks", _COLD, int(np.count_nonzero(reads["ahead"]))),
        *(("waiting for reads", "s", {**_COLD, "device": device}, wait / 1e9)
          for device, wait in waits.items()),
        *_calls("cold", cold),
        *_calls("cached", cached),
    ]  # fmt: skip
    outcome.figures += [
        Figure(side.name, name, unit, {**_AS_BUILT, **case}, modelled=float(count))
        for name, unit, case, count in rows
    ]
    first = devices[0].name
    # the message names no device: the first stands for it
    others = {name: wait for name, wait in waits.items()
              if name != first and name in load_message("fiemap-shared").devices}  # fmt: skip
    outcome.timed += [
        Timed(side.name, "time", "s", {**_AS_BUILT, **_COLD, "device": device},
              {**cold, **lie.amounts}, wait, conditions={"device": device},
              elsewhere=others if device == first else {}, beside=device == first)
        for device, wait in waits.items()
    ]  # fmt: skip
    outcome.timed.append(
        Timed(side.name, "time", "s", {**_AS_BUILT, "cache": "cached"}, dict(cached),
              conditions={"device": MEMORY})
    )  # fmt: skip


def _figures_rewritten(fs: Filesystem, side: Side, extents: int, limits: Limits) -> list[Figure]:
    """Figures of a call after some extents were written again."""
    with counting() as work:
        table = Fiemap(fs, "", FILE, behaviour=side.behaviour, limits=limits).run()
    shared = int(np.count_nonzero(table["flags"] & _SHARED))
    rows = [
        ("extents found", "extents", len(table)),
        ("extents shared", "extents", shared),
        *((name, "calls", work[name]) for name in _QUANTITIES),
    ]
    return [
        Figure(side.name, name, unit, {"rewritten": extents}, modelled=float(count))
        for name, unit, count in rows
    ]


def _calls(cache: str, work: Work) -> list[tuple[str, str, Case, float]]:
    """Name the calls of kernel functions in one call; what is saved stands there even if 0."""
    return [
        (name, "calls", {"cache": cache}, count)
        for name, count in sorted(work.items())
        if count or name in _QUANTITIES
    ]


def _owner(fs: Filesystem, logical: int) -> int:
    """Tree that a block was written for."""
    _, _, _, _, _, _, owner, *_ = HEADER.unpack_from(fs.image.block(logical))
    return int(owner)


def _add_savings(outcome: Outcome, chosen: tuple[Side, ...]) -> None:
    """Add what the second side saves against the first."""
    for function, name in _QUANTITIES.items():
        for cache in _CACHES:
            case = {**_AS_BUILT, "cache": cache}
            counts = [outcome.find(side.name, function, **case) for side in chosen[:2]]
            before, after = ((found.modelled or 0.0) if found else 0.0 for found in counts)
            outcome.figures.append(
                Figure(chosen[1].name, name, "calls", case, modelled=before - after)
            )


def walks_of_a_call(
    fs: Filesystem, behaviour: str, limits: Limits | None = None
) -> list[tuple[int, int]]:
    """Follow one call of ``filefrag`` in the middle of the file, extent by extent.

    Parameters
    ----------
    fs : Filesystem
        A filesystem with the file.
    behaviour : str
        The kernel.
    limits : Limits, optional
        Of its caches.

    Returns
    -------
    list of tuple of int
        For each extent of the call the address of its leaf, and how many blocks and extents were
        walked back from (``find_parent_nodes()``) to tell whether it is shared.
    """
    from btrfs_model.reference.share import ShareContext  # the chart that walks in Python

    sub = fs.subvolume("")
    inode = sub.inode(FILE)
    calls = inode.size // EXTENT_BYTES // FILEFRAG_EXTENTS
    start = calls // 2 * FILEFRAG_EXTENTS * EXTENT_BYTES
    context = ShareContext(
        fs.forest([sub.id]), sub.id, inode.ino, sub.item.last_snapshot,
        Behaviour.parse(behaviour), limits or Limits(),
    )  # fmt: skip
    kind = int(ItemType.EXTENT_DATA)
    found = []
    for item in islice(sub.tree.items((inode.ino, kind, start)), FILEFRAG_EXTENTS):
        if item.key[:2] != (inode.ino, kind):
            break
        extent = FileExtent.of(item, file_extent(item.data), fs.image, sub.id)
        context.curr_leaf_bytenr = extent.block
        with counting() as work:
            context.is_data_extent_shared(extent.disk_bytenr, extent.generation)
        found.append((extent.block, work["find_parent_nodes"]))
    return found


def walks_along(fs: Filesystem, behaviour: str, limits: Limits | None = None) -> list[int]:
    """Count the walks of each call of ``filefrag``, from the start of the file to its end."""
    file = Fiemap(fs, "", FILE, behaviour=behaviour, limits=limits)
    size = fs.subvolume("").inode(FILE).size
    step = FILEFRAG_EXTENTS * EXTENT_BYTES
    found = []
    for start in range(0, size, step):
        with counting() as work:
            # room for one more, so that what ends with the range is one call
            file.run(start, step, extents_per_call=FILEFRAG_EXTENTS + 1)
        found.append(work["find_parent_nodes"])
    return found


def _add_reported(outcome: Outcome, pairs: list[tuple[Side, Side]]) -> None:
    """Set the number of extents that the message reports beside the figures of its two sides."""
    for known, side in pairs:
        found = outcome.find(side.name, "extents found")
        if found is not None and known in (BEFORE, AFTER):
            found.reported = float(_EXTENTS)


def _add_measured(outcome: Outcome, pairs: list[tuple[Side, Side]], source: Input) -> None:
    """Set what real kernels did with the same image, or the same workload, beside the figures."""
    measured = recorded("fiemap-shared")
    name = source.sample or ("full" if source.scale == 1 else "")
    records = [
        {**_AS_BUILT, **{key: value for key, value in row.items() if key != "input"}}
        for row in measured["rows"]
        if row["input"] == name
    ]
    outcome.add_measured(pairs, records, measured["sources"].get(name, {}))


WORKLOAD = FiemapShared(
    name="fiemap-shared",
    toggles=(Patch.FIEMAP_SHARED_LEAF,),
    summary=(
        "FIEMAP says of every extent whether it is shared, and finds out by walking back from the "
        "extent to the trees that refer to it. When a snapshot shares the leaf that an extent's "
        "item is in, the extent is shared for that reason alone, and the walk for the extent "
        "before it in the same leaf has found that out already. With the change the answer is "
        "taken from there.",
        "What is left is a walk for the first extent of each leaf in each call of the ioctl, since "
        "a call begins with empty caches, and walks for extents in leaves that are not shared "
        "themselves: those that were copied when the snapshot was made.",
    ),
    caveats=(
        Note("filefrag asks for 292 extents a call."),
        Note(
            "At full scale the tree has two levels of nodes. Making the snapshot copied the node "
            "above the first leaves of the file, so those have two parents. Since 6.3 nothing is "
            "remembered of a block with several (fiemap-multiple-paths): there, Linux 6.12 walks "
            "back from each extent and from three blocks above it. Both sides are without that.",
            sides=(BEFORE, AFTER, KERNELS[1]),
        ),
        Note(
            "Both sides are Linux 6.2, which has the earlier commits of the same author that "
            "remember paths and single extents.",
            sides=(BEFORE, AFTER),
        ),
        Note(
            "Counts and reads were measured on Linux 6.1.176 and 6.12.101; the model of each of "
            "these kernels is beside them.",
            sides=KERNELS,
            measured=("calls", "blocks read"),
        ),
        Note(
            "The message does not name its device. Both sides read nearly the same, in another "
            "order: here and there a disk waits for a rotation more or less.",
            device=True,
        ),
        Note(
            "Reported and measured times are of different machines; measured ones are of User-Mode "
            "Linux, and of an image that a kernel wrote.",
            measured=("times",),
        ),
    ),
    inputs=(
        Input("kernel/counts/W3/snap200", "", 1600 / _EXTENTS, {"extents": 1600}),
        Input("kernel/fiemap/f100", "", 3200 / _EXTENTS, {"extents": 3200}),
        Input(None, "", 1.0, {"extents": _EXTENTS}),
    ),
    least=2,
    headline=(
        "extents found", "extents shared", "blocks read", "find_parent_nodes", "btrfs_search_slot",
        "time", "waiting for reads",
    ),
    compared=COMPARED,
    groups=(
        Group("Extents, blocks read by a cold call", ("extents", "ioctl", "blocks"), _AS_BUILT),
        Group("Times; how long the cold reads alone take on a device", ("time", "waiting")),
        Group("Saved against the first side", ("saved: ",)),
        Group("Calls of kernel functions, metadata not cached", case=_COLD),
        Group("Calls of kernel functions, metadata cached", case={"cache": "cached"}),
        Group("After one extent in a hundred was written again"),
    ),
)  # fmt: skip
