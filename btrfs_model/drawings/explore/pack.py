# SPDX-License-Identifier: GPL-2.0-only
"""Tree blocks packed for a page; ``blocks.js`` unpacks them to the same bytes.

What is unused in a block is 0 where a kernel wrote it, and left out. The rest of many neighbours
is sorted before it is compressed: headers, keys, and payloads of the same type and size stand in
columns, byte by byte, each byte less that of the row before. Names are either in such columns, or
one behind the other as text: whatever becomes smaller. What follows from other bytes is taken away:
the hash of a name from its key, and the length of the name from its field.

A pack is compressed (raw deflate) and has, all numbers little endian:

    u32, u8         how many blocks; whether names are text
    u8 of each      whether it is kept whole: no kernel packs it so, or unused bytes are not 0
    heads           101 bytes of each block
    pointers        33 bytes each, of the nodes
    keys            17 bytes each, of all items of the leaves
    sizes           4 bytes each, no differences
    payloads        by type and size, but for those with names, if names are text:
    heads of these  by type
    names           in the order of the items
    whole blocks    what is behind their heads
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Sequence
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from btrfs_model.base.errors import CorruptImageError
from btrfs_model.ondisk import structs
from btrfs_model.ondisk.hashes import name_hash
from btrfs_model.ondisk.keys import ItemType
from btrfs_model.ondisk.layout import Layout
from btrfs_model.ondisk.structs import HEADER, ITEM, KEY_PTR
from btrfs_model.volume.image import Image
from btrfs_model.volume.tree import Tree

Bytes = npt.NDArray[np.uint8]
Numbers = npt.NDArray[np.int64]

_PACK: Final = 1 << 20
"""Bytes of blocks in a pack: what is unpacked to show one of them."""
_KEY: Final = structs.DISK_KEY.size
_SIZE_AT: Final = _KEY + 4


class _Named(NamedTuple):
    """A type of item with a name at its end: where the lengths are in its head."""

    head: int
    name_len: int
    data_len: int
    hashed: bool


def _named(layout: Layout[Any], *, hashed: bool = False) -> _Named:
    places = layout.dtype.fields
    assert places is not None
    data_len = places["data_len"][1] if "data_len" in places else -1
    return _Named(layout.size, places["name_len"][1], data_len, hashed)


NAMED: Final[dict[int, _Named]] = {
    ItemType.INODE_REF: _named(structs.INODE_REF),
    ItemType.INODE_EXTREF: _named(structs.INODE_EXTREF),
    ItemType.XATTR_ITEM: _named(structs.DIR_ITEM, hashed=True),
    ItemType.DIR_ITEM: _named(structs.DIR_ITEM, hashed=True),
    ItemType.DIR_INDEX: _named(structs.DIR_ITEM),
    ItemType.ROOT_BACKREF: _named(structs.ROOT_REF),
    ItemType.ROOT_REF: _named(structs.ROOT_REF),
}
"""Types of items with names, by number."""


class Packs(NamedTuple):
    """The blocks of trees.

    `addresses`: logical addresses in the order of the packs.
    `states`: of each block the states that have it, a bit each.
    `counts`: how many are in each pack.
    `packs`: the packs.
    `faults`: of each state what is wrong with the blocks that cannot be read, by address.
    """

    addresses: list[int]
    states: list[int]
    counts: list[int]
    packs: list[bytes]
    faults: list[dict[int, str]]

    @property
    def rows(self) -> Bytes:
        """Address and states of each block, as bytes of a row."""
        places = np.array(self.addresses, "<u8").view(np.uint8).reshape(-1, 8)
        return np.column_stack([places, np.array(self.states, np.uint8)])


def pack_trees(image: Image, states: Sequence[Iterable[Tree]]) -> Packs:
    """Pack the blocks of trees, each once; nodes have packs of their own, which come first.

    `states`: the trees of each. What one has at an address another may have lost: it has been
    written since.
    """
    nodes: dict[int, int] = {}
    leaves: dict[int, int] = {}
    faults = [dict[int, str]() for _ in states]
    for number, trees in enumerate(states):
        for tree in trees:
            _walk(image, tree, 1 << number, nodes, leaves, faults[number])
    per_pack = max(1, _PACK // image.nodesize)
    runs = [
        list(some)[at : at + per_pack]
        for some in (nodes, leaves)
        for at in range(0, len(some), per_pack)
    ]
    return Packs([*nodes, *leaves], [*nodes.values(), *leaves.values()],
                 [len(run) for run in runs], [_pack(image, run) for run in runs],
                 faults)  # fmt: skip


def _walk(
    image: Image,
    tree: Tree,
    state: int,
    nodes: dict[int, int],
    leaves: dict[int, int],
    faults: dict[int, str],
) -> None:
    """Find the blocks of a tree of a state, which is a bit, level by level."""
    below = [(tree.bytenr, tree.generation)]
    for level in range(tree.level, -1, -1):
        here, below = below, []
        found = nodes if level else leaves
        for address, generation in here:
            if found.get(address, 0) & state or address in faults:
                continue
            try:
                block = image.block(address, level=level, generation=generation, tree=tree.objectid)
            except CorruptImageError as error:
                faults[address] = error.strerror or str(error)
                continue
            found[address] = found.get(address, 0) | state
            if level:
                pointers = KEY_PTR.view(block, HEADER.unpack(block).nritems, HEADER.size)
                places = pointers["blockptr"].tolist(), pointers["generation"].tolist()
                below += zip(*places, strict=True)


def deflate(data: bytes) -> bytes:
    """Compress for ``DecompressionStream("deflate-raw")``."""
    packer = zlib.compressobj(wbits=-15)
    return packer.compress(data) + packer.flush()


def columns(rows: Bytes) -> bytes:
    """Return rows of bytes column by column, each byte less the one before."""
    less = rows.copy()
    less[1:] -= rows[:-1]
    return less.T.tobytes()


def _numbers(data: Bytes, places: Numbers, width: int) -> Numbers:
    """Return numbers of so many bytes."""
    numbers: Numbers = _rows(data, places, width).view(f"<u{width}")[:, 0].astype(np.int64)
    return numbers


def _rows(data: Bytes, places: Numbers, width: int) -> Bytes:
    rows: Bytes = data[places[:, None] + np.arange(width)]
    return rows


def _slots(starts: Numbers, counts: Numbers, width: int) -> Numbers:
    """Return where the entries of blocks are; `starts`: where the blocks are."""
    first = np.repeat(np.cumsum(counts) - counts, counts)
    slots = np.arange(counts.sum()) - first
    places: Numbers = np.repeat(starts, counts) + HEADER.size + width * slots
    return places


def _pack(image: Image, run: Sequence[int]) -> bytes:
    nodesize = image.nodesize
    data = np.concatenate([np.frombuffer(image.block(one), np.uint8) for one in run])
    starts = np.arange(len(run), dtype=np.int64) * nodesize
    heads = HEADER.view(_rows(data, starts, HEADER.size).tobytes(), len(run))
    counts, is_leaf = heads["nritems"].astype(np.int64), heads["level"] == 0
    whole = is_leaf & ~_is_tight(data, starts, counts * is_leaf, nodesize)
    whole |= _has_remains(data, starts, counts, is_leaf, nodesize)
    nodes, tight = ~is_leaf & ~whole, is_leaf & ~whole
    pointers = _slots(starts[nodes], counts[nodes], KEY_PTR.size)
    items = _slots(starts[tight], counts[tight], ITEM.size)
    kinds = data[items + 8].astype(np.int64)
    sizes = _numbers(data, items + _SIZE_AT, 4)
    places = np.repeat(starts[tight], counts[tight]) + HEADER.size + _numbers(data, items + _KEY, 4)
    named = _take_away(data, items, kinds, sizes, places)
    before = [
        whole.astype(np.uint8).tobytes(),
        columns(_rows(data, starts, HEADER.size)),
        columns(_rows(data, pointers, KEY_PTR.size)),
        columns(_rows(data, items, _KEY)),
        _rows(data, items + _SIZE_AT, 4).T.tobytes(),
    ]
    behind = [data[at + HEADER.size : at + nodesize].tobytes() for at in starts[whole].tolist()]
    plain = _by_size(data, kinds, sizes, places, ~named)
    texts = _as_text(data, kinds, sizes, places, named)
    in_columns = _by_size(data, kinds, sizes, places, np.ones_like(named))
    return min(
        (
            deflate(b"".join((len(run).to_bytes(4, "little"), bytes([is_text]), *before,
                              *payloads, *behind)))
            for is_text, payloads in ((0, in_columns), (1, [*plain, *texts]))
        ),
        key=len,
    )  # fmt: skip


def _is_tight(
    data: Bytes, starts: Numbers, counts: Numbers, nodesize: int
) -> npt.NDArray[np.bool_]:
    """Tell which leaves have the payloads of their items one before the other from their ends."""
    items = _slots(starts, counts, ITEM.size)
    at, sizes = _numbers(data, items + _KEY, 4), _numbers(data, items + _SIZE_AT, 4)
    ends = np.concatenate([[0], at[:-1]])
    has_items = counts > 0
    ends[(np.cumsum(counts) - counts)[has_items]] = nodesize - HEADER.size
    bad = np.repeat(np.arange(len(starts)), counts)[at + sizes != ends]
    return ~np.isin(np.arange(len(starts)), bad)


def _has_remains(
    data: Bytes, starts: Numbers, counts: Numbers, is_leaf: npt.NDArray[np.bool_], nodesize: int
) -> npt.NDArray[np.bool_]:
    """Tell in which blocks bytes are not 0 between the entries and the payloads, or the end."""
    begins = HEADER.size + counts * np.where(is_leaf, ITEM.size, KEY_PTR.size)
    ends = np.full_like(begins, nodesize)
    some = is_leaf & (counts > 0)
    last = starts[some] + begins[some] - ITEM.size
    ends[some] = HEADER.size + _numbers(data, last + _KEY, 4)
    places = zip((starts + begins).tolist(), (starts + ends).tolist(), strict=True)
    return np.array([bool(data[begin:end].any()) for begin, end in places])


def _take_away(
    data: Bytes, items: Numbers, kinds: Numbers, sizes: Numbers, places: Numbers
) -> npt.NDArray[np.bool_]:
    """Take away hashes and lengths of names; return which items have names."""
    every = np.zeros(len(items), np.bool_)
    for kind, what in NAMED.items():
        some = np.flatnonzero((kinds == kind) & (sizes >= what.head))
        every[some] = True
        at = places[some] + what.name_len
        lengths, room = _numbers(data, at, 2), sizes[some] - what.head
        if what.hashed:
            names = places[some] + what.head
            raw, hashes = data.tobytes(), np.empty(len(some), "<u4")
            ends = names + np.minimum(lengths, room)
            for number, (start, end) in enumerate(zip(names.tolist(), ends.tolist(), strict=True)):
                hashes[number] = name_hash(raw[start:end])
            offsets = items[some] + 9
            data[offsets[:, None] + np.arange(4)] ^= hashes.view(np.uint8).reshape(-1, 4)
        if what.data_len >= 0:
            room = room - _numbers(data, places[some] + what.data_len, 2)
        left = (lengths - room).astype("<u2").view(np.uint8).reshape(-1, 2)
        data[at[:, None] + np.arange(2)] = left
    return every


def _by_size(
    data: Bytes, kinds: Numbers, sizes: Numbers, places: Numbers, some: npt.NDArray[np.bool_]
) -> list[bytes]:
    """Return payloads in columns, by type and size."""
    chosen = np.flatnonzero(some)
    code = kinds[chosen] << 32 | sizes[chosen]
    order = np.argsort(code, kind="stable")
    cuts = np.flatnonzero(np.diff(code[order])) + 1
    groups = np.split(chosen[order], cuts)
    return [columns(_rows(data, places[one], int(sizes[one[0]]))) for one in groups if len(one)]


def _as_text(
    data: Bytes, kinds: Numbers, sizes: Numbers, places: Numbers, named: npt.NDArray[np.bool_]
) -> list[bytes]:
    """Return payloads with names: their heads in columns, then the rest of each."""
    parts, starts, raw = [], places.copy(), data.tobytes()
    for kind, what in sorted(NAMED.items()):
        some = named & (kinds == kind)
        parts.append(columns(_rows(data, places[some], what.head)))
        starts[some] += what.head
    ends = (places + sizes)[named].tolist()
    names = zip(starts[named].tolist(), ends, strict=True)
    return [*parts, *(raw[start:end] for start, end in names)]
