# SPDX-License-Identifier: GPL-2.0-only
"""The sizes of all sends between snapshots, and the smallest chain of sends for all of them.

Sizes follow from the trees alone; file data are not read. What a receiver needs is the parent: it
finds that by the UUID in the stream.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any, Final

from btrfs_model.base.arguments import checked
from btrfs_model.base.errors import BtrfsModelError
from btrfs_model.behaviour import Behaviour
from btrfs_model.cost.machine import Machine, chosen
from btrfs_model.limits import Limits
from btrfs_model.native.lease import exclusive
from btrfs_model.native.send import Known
from btrfs_model.patches import KERNEL
from btrfs_model.questions.send.ioctl import SendResult, sizes_of
from btrfs_model.volume.filesystem import Filesystem, opening

if TYPE_CHECKING:
    import pandas as pd

    from btrfs_model.volume.subvolume import Subvolume

_COLUMNS: Final = {
    "snapshot": "object", "parent": "object", "clone_sources": "int64", "bytes": "UInt64",
    "commands": "UInt64", "seconds": "float64", "low": "float64", "high": "float64",
    "needs": "object", "refused": "object", "cheapest": "bool",
}  # fmt: skip


@dataclass(frozen=True, repr=False)
class Plan:
    """All sends between snapshots, and the chain of them that is smallest altogether.

    Attributes
    ----------
    table : pandas.DataFrame
        A row for each send: ``snapshot``, ``parent`` (empty: all of it is sent), ``clone_sources``
        (how many, the parent among them), ``bytes`` and ``commands`` of the stream, ``seconds``
        that the send takes with all in memory, ``low`` and ``high`` (their 90 % interval),
        ``needs`` (the UUID by which a receiver has to find the parent, hexadecimal), ``refused``
        (why the kernel, or a receive at the target, refuses it; empty where neither does),
        ``cheapest`` (whether it is the smallest of its snapshot that is not refused).
    chain : pandas.DataFrame
        The same rows, without ``cheapest``, of what is to be sent, in an order in which each parent
        is there when it is needed. No other such chain has fewer bytes.
    there : list of str
        Snapshots that the target has already.
    """

    table: pd.DataFrame
    chain: pd.DataFrame
    there: list[str]

    @property
    def bytes(self) -> int:
        """Bytes of all streams of the chain."""
        return int(self.chain["bytes"].sum())

    def __repr__(self) -> str:
        return f"Plan({len(self.table)} sends; {self.bytes:,} bytes in {len(self.chain)})"

    def _repr_html_(self) -> str:
        return str(self.chain.to_html(index=False))


@checked
@opening
@exclusive
def plan(
    fs: Filesystem,
    *snapshots: str | bytes | int | Subvolume,
    target: Filesystem | Iterable[str] | None = None,
    clones: bool = False,
    behaviour: str | Behaviour = KERNEL,
    limits: Limits | Mapping[str, int] | None = None,
    proto: int = 1,
    compressed: bool = False,
    machine: str | Machine | None = None,
) -> Plan:
    """Tell the size of each send between snapshots, and the smallest chain of sends for all.

    Parameters
    ----------
    fs : Filesystem, str, os.PathLike or sequence of them
        Where they are, or the files it is in.
    *snapshots : str, bytes, int or Subvolume
        Paths or ids of read-only subvolumes; all of these without any.
    target : Filesystem or iterable of str, optional
        What the receiver has: its filesystem, or UUIDs from which subvolumes were received there,
        hexadecimal. Without it, it has nothing.
    clones : bool
        Look at each send a second time, with all older snapshots as further clone sources. A chain
        then goes from older to newer ones.
    behaviour, limits, proto, compressed
        As for :func:`btrfs_model.questions.send.ioctl.send`.
    machine : str or Machine, optional
        What the times are those of; the native machine without it.

    Returns
    -------
    Plan
        Sends and chain.

    Raises
    ------
    SubvolumeNotFoundError
        When there is no such subvolume.
    BtrfsModelError
        When no subvolume is read-only, and for a machine that there is not.
    CorruptImageError
        When the image is broken where a send looks.
    """
    import pandas as pd

    asked = [fs.subvolume(one) for one in snapshots or fs.subvolume_ids]
    found = {one.id: one for one in asked if snapshots or one.is_read_only}
    if not found:
        raise BtrfsModelError(f"{fs.path}: no subvolume is read-only, and so none can be sent")
    ordered = sorted(found.values(), key=lambda one: (one.item.ctransid, one.id))
    has = _of_target(target)
    how: dict[str, Any] = {"behaviour": behaviour, "limits": limits, "proto": proto,
                           "compressed": compressed}  # fmt: skip
    rows = _rows(fs, _sends(ordered, clones=clones), how, chosen(machine))
    table = pd.DataFrame(rows)
    table["refused"] = [
        row["refused"] or (_missing(row["needs"], has, ordered) if row["needs"] else "")
        for row in rows
    ]
    can = table[table["refused"] == ""].groupby("snapshot", sort=False)["bytes"]
    table["cheapest"] = table.index.isin(can.idxmin())
    there = [one.path for one in ordered if has.get(_sent_uuid(one))]
    picked = _chain(table, [one.path for one in ordered], there, only_older=clones)
    chain = table.loc[picked].drop(columns="cheapest").reset_index(drop=True)
    return Plan(table.astype(_COLUMNS), chain.astype(
        {name: kind for name, kind in _COLUMNS.items() if name != "cheapest"}), there)  # fmt: skip


def _sent_uuid(subvolume: Subvolume) -> str:
    """Return the UUID that a stream gives: that of what a subvolume was received from, if any."""
    item = subvolume.item
    return (item.received_uuid if any(item.received_uuid) else item.uuid).hex()


def _of_target(target: Filesystem | Iterable[str] | None) -> dict[str, bool]:
    """Return the UUIDs that a receive finds, and whether what it finds is read-only still."""
    if target is None:
        return {}
    if not isinstance(target, Filesystem):
        return {uuid.replace("-", "").lower(): True for uuid in target}
    # the received copy is looked for before the original
    subvolumes = target.subvolumes()
    rows = subvolumes[["uuid", "received_uuid", "read_only"]].itertuples(index=False)
    found: dict[str, bool] = {}
    for own, received, read_only in rows:
        found.setdefault(own, read_only)
        if received:
            found[received] = read_only
    return found


def _missing(uuid: str, has: Mapping[str, bool], ordered: Sequence[Subvolume]) -> str:
    """Say why a receive would not find a parent; empty where it can come before."""
    if uuid in has:
        return "" if has[uuid] else "the target's copy of the parent is writable, and may differ"
    if any(_sent_uuid(one) == uuid for one in ordered):
        return ""
    return f"cannot find parent subvolume {uuid}"


_Send = tuple["Subvolume", "Subvolume | None", "list[Subvolume]"]
"""What is sent, from which parent, with which clone sources."""


def _sends(ordered: Sequence[Subvolume], *, clones: bool) -> Iterator[list[_Send]]:
    """Yield all sends of each snapshot; they are in the order of their age."""
    for age, snapshot in enumerate(ordered):
        sends: list[_Send] = []
        for parent in (None, *(one for one in ordered if one is not snapshot)):
            base = [] if parent is None else [parent]
            sends.append((snapshot, parent, base))
            if clones and (further := [one for one in ordered[:age] if one is not parent]):
                sends.append((snapshot, parent, [*base, *further]))
        yield sends


def _rows(
    fs: Filesystem, sends: Iterable[list[_Send]], how: Mapping[str, Any],
    machine: Machine,
) -> list[dict[str, Any]]:  # fmt: skip
    """Look at all sends; each thread has the files open for itself, where there are files."""
    opened = fs.image.opened
    if opened is None:
        known = Known()
        return [row for some in sends for row in _rows_of(fs, known, some, how, machine)]
    threads, (paths, options) = os.cpu_count() or 1, opened
    with ExitStack() as stack:
        idle = SimpleQueue[tuple[Filesystem, Known]]()
        for _ in range(threads):
            idle.put((stack.enter_context(Filesystem.open(paths, **options)), Known()))
        pool = stack.enter_context(ThreadPoolExecutor(threads))

        def look(some: list[_Send]) -> list[dict[str, Any]]:
            mine, known = idle.get()
            try:
                # what is asked for belongs to the filesystem of another thread
                asked = [
                    (
                        mine.subvolume(snapshot.id),
                        None if parent is None else mine.subvolume(parent.id),
                        [mine.subvolume(each.id) for each in sources],
                    )
                    for snapshot, parent, sources in some
                ]
                return _rows_of(mine, known, asked, how, machine)
            finally:
                idle.put((mine, known))

        return [row for rows in pool.map(look, sends) for row in rows]


def _rows_of(
    fs: Filesystem, known: Known, sends: Sequence[_Send], how: Mapping[str, Any],
    machine: Machine,
) -> list[dict[str, Any]]:  # fmt: skip
    told = sizes_of(fs, sends, known, **how)
    return [_row(asked, sent, machine) for asked, sent in zip(sends, told, strict=True)]


def _row(asked: _Send, sent: SendResult | OSError, machine: Machine) -> dict[str, Any]:
    snapshot, parent, sources = asked
    row: dict[str, Any] = {
        "snapshot": snapshot.path, "parent": "" if parent is None else parent.path,
        "clone_sources": len(sources), "bytes": None, "commands": None, "seconds": None,
        "low": None, "high": None, "needs": "" if parent is None else _sent_uuid(parent),
        "refused": "",
    }  # fmt: skip
    if isinstance(sent, OSError):
        return {**row, "refused": sent.strerror or str(sent)}
    time = sent.time(machine)
    return {
        **row,
        "bytes": sent.size,
        "commands": sum(sent.commands.values()),
        **{name: float(f"{getattr(time, name):.3g}") for name in ("seconds", "low", "high")},
    }


def _chain(
    table: pd.DataFrame, paths: Sequence[str], there: Sequence[str], *, only_older: bool
) -> list[int]:
    """Choose the sends that are smallest altogether, in order; their rows.

    They are a tree of least weight below what the receiver has (Edmonds 1967, by networkx).
    """
    import networkx as nx

    graph, age = nx.DiGraph(), {path: number for number, path in enumerate(paths)}
    for path in there:
        graph.add_edge("", path, bytes=0)
    for number, row in table[table["refused"] == ""].sort_values("bytes", kind="stable").iterrows():
        snapshot, parent = row["snapshot"], row["parent"]
        later = only_older and parent and age[parent] > age[snapshot]
        if snapshot not in there and not later and not graph.has_edge(parent, snapshot):
            graph.add_edge(parent, snapshot, bytes=int(row["bytes"]), row=number)
    graph.add_node("")
    reached = graph.subgraph({"", *nx.descendants(graph, "")})
    tree = nx.minimum_spanning_arborescence(reached, attr="bytes", preserve_attrs=True)
    chosen, waiting = [], [""]
    while waiting:
        parent = waiting.pop(0)
        if parent and "row" in (edge := next(iter(tree.in_edges(parent, data=True)))[2]):
            chosen.append(edge["row"])
        waiting = sorted([*waiting, *tree.successors(parent)], key=age.__getitem__)
    return chosen
