# SPDX-License-Identifier: GPL-2.0-only
"""What work is counted in, and how it reads as the cause of a time."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from btrfs_model.base.counters import NAMES
from btrfs_model.cost.caches import UNCACHED
from btrfs_model.cost.pipe import PIPE_WAKES
from btrfs_model.cost.receiver import CALLS, LAST_PAGE_WAIT

DEVICE: Final = "device"
"""Name of the part of a time that is waiting for a device."""

BLOCKS_AWAITED: Final = "blocks_awaited"
"""Tree blocks that nobody read ahead; where there is a device, what is waited for them is its."""

PHRASES: Final = {
    "btrfs_search_slot": "searching trees {} times",
    "btrfs_search_old_slot": "searching trees as they were {} times",
    "read_block_for_search": "going down {} levels of trees",
    "btrfs_get_next_valid_item": "stepping over {} items",
    "btrfs_next_old_item": "going on to {} next items",
    "btrfs_next_old_leaf": "going on to {} next leaves",
    "leaves_visited": "coming to {} leaves",
    "items_visited": "looking at {} items",
    "tree_advance": "comparing trees in {} steps",
    "send_cmd": "writing {} commands",
    "data_reads": "reading the data of {} extents",
    "find_parent_nodes": "walking back from {} blocks and extents",
    "add_prelim_ref": "gathering {} back references",
    "prelim_ref_insert": "gathering {} back references",
    "fiemap_fill_next_extent": "reporting {} extents",
    "emit_fiemap_extent": "reporting {} extents",
    "log_items_copied": "copying {} items into the log",
    "log_bytes_copied": "copying {} bytes into the log",
    "log_leaves_entered": "coming to other leaves {} times while logging",
    UNCACHED: "coming to {} leaves of the log that no cache has",
    "log_entries_visited": "looking at {} entries of directories",
    "log_leaves_written": "writing {} leaves of the log",
    "log_nodes_written": "writing {} nodes of the log",
    "btrfs_sync_log": "syncing the log {} times",
    "btrfs_log_inode": "logging {} inodes",
    "leaves_copied": "copying {} leaves",
    "blocks_read": "reading {} tree blocks",
    BLOCKS_AWAITED: "waiting for {} tree blocks",
    "stream_bytes": "copying {} bytes of stream",
    "data_bytes": "reading {} bytes of file data",
    "written_bytes": "writing {} bytes to files",
    PIPE_WAKES: "waking the reader of a pipe {} times",
    LAST_PAGE_WAIT: "waiting for {} pages to be written",
}
"""What the kernel does, by the quantity that counts it; other functions are called by name."""

QUANTITIES: Final = frozenset((*NAMES, *PHRASES, *CALLS))
"""What a cost may be paid for: counters, and what is counted of streams and of their receiver."""

PARTS: Final = {
    "tree searches": ("btrfs_search_slot", "btrfs_search_slot_for_read", "read_block_for_search"),
    "items stepped over": ("btrfs_get_next_valid_item", "items_visited"),
    "commands": ("send_cmd", "stream_bytes"),
    "walks of back references": (
        "find_parent_nodes", "add_prelim_ref", "prelim_ref_insert", "btrfs_is_data_extent_shared",
    ),
    "items of the log": ("log_items_copied", "log_bytes_copied"),
    "blocks of the log": ("log_leaves_written", "log_nodes_written"),
    "system calls": CALLS,
    "pages that are waited for": (LAST_PAGE_WAIT,),
}  # fmt: skip
"""Parts of an operation that take time, by the quantities that one of must have a cost."""

_SEEN_BY_OTHERS: Final = frozenset((
    "leaves_visited", "nodes_visited", "items_visited", "subtrees_skipped", "submit_bio",
    "read_tree_block", "reada_for_search", "btrfs_readahead_node_child",
    "btrfs_search_slot_for_read",
    "log_leaves_uncached_16m", "log_leaves_uncached_8m", "log_bytes_copied",
))  # fmt: skip
"""Counters that look at the same work as others, which are paid for."""

_OPERATIONS: Final = {
    "send": ("send_cmd",), "fiemap": ("emit_fiemap_extent",), "fsync": ("btrfs_log_inode",),
    "receive": CALLS,
}  # fmt: skip
OPERATIONS: Final = tuple(_OPERATIONS)
"""Operations that a machine's times are more or less right for."""


def operations(work: Mapping[str, float]) -> list[str]:
    """Name the operations, of :data:`OPERATIONS`, that some work is of."""
    return [name for name, quantities in _OPERATIONS.items() if any(map(work.get, quantities))]


def without_cost(
    work: Mapping[str, float], paid: Iterable[str], *, waited: bool
) -> tuple[str, ...]:
    """Name the parts of an operation that were done, and that no cost is paid for.

    Pages that are written are paid for by waiting for the device, where there is one.
    """
    known = set(paid) | ({LAST_PAGE_WAIT} if waited else set())
    return tuple(
        part
        for part, quantities in PARTS.items()
        if known.isdisjoint(quantities) and any(work.get(name, 0) > 0 for name in quantities)
    )


def unpaid(
    before: Mapping[str, float], after: Mapping[str, float], paid: Iterable[str]
) -> dict[str, float]:
    """Return what is counted, has no cost, and differs: by how much more it is before.

    Where one of the quantities of a part is paid for, so are the others: :data:`PARTS`.
    """
    known = set(paid)
    parts = (part for part in PARTS.values() if not known.isdisjoint(part))
    known.update(_SEEN_BY_OTHERS, *parts)
    more = {name: before.get(name, 0) - after.get(name, 0) for name in NAMES if name not in known}
    return {name: count for name, count in more.items() if count}


def words(amounts: Mapping[str, float], work: Mapping[str, float]) -> str:
    """Say what was done for a cost, in a few words.

    Parameters
    ----------
    amounts : mapping
        What it is paid for, each weighted by what one costs: the largest is named.
    work : mapping
        How much was done.
    """
    if not set(amounts) - set(CALLS):
        return f"making {amount(sum(work[name] for name in amounts))} system calls"
    name = max(amounts, key=lambda one: amounts[one])
    phrase = PHRASES.get(name, "calling " + name + "() {} times")
    return phrase.format(amount(work[name]))


def amount(value: float) -> str:
    """Format a count for people: ``900 million``, ``1.3 million``, ``12,345``."""
    for size, word in ((1e9, "billion"), (1e6, "million")):
        if value >= size:
            return f"{value / size:.3g} {word}"
    return f"{value:,.0f}" if value == round(value) else f"{value:,.4g}"


def duration(seconds: float) -> str:
    """Format a time for people: ``27.7 s``, ``123 ms``, ``4.5 us``."""
    for size, unit in ((1.0, "s"), (1e-3, "ms")):
        if seconds >= size:
            return f"{seconds / size:,.3g} {unit}" if seconds < 1000 else f"{seconds:,.0f} s"
    return f"{seconds * 1e6:.3g} us" if seconds else "0 s"
