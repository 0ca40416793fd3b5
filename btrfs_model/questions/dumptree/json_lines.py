# SPDX-License-Identifier: GPL-2.0-only
"""Trees as lines of JSON: one object an item.

    {"tree": 5, "tree_offset": 0, "leaf": 30490624, "slot": 1, "generation": 7, "owner": 5,
     "key": {"objectid": 256, "type": 12, "type_name": "INODE_REF", "offset": 256}, "size": 12,
     "item": [{"index": 0, "name": ".."}]}

`item` has the fields of :mod:`btrfs_model.ondisk.items`, by name. Of bytes, names are text (a byte
that is not UTF-8 becomes a lone surrogate, ``surrogateescape``), uuids have their usual form, and
everything else is hexadecimal. Numbers may take all of 64 bits.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import partial
from typing import Any, BinaryIO

from btrfs_model.ondisk.items import decode
from btrfs_model.ondisk.keys import Key, item_type_name
from btrfs_model.ondisk.structs import HEADER, DiskKey
from btrfs_model.questions.dumptree.filters import key_range
from btrfs_model.questions.dumptree.templates import uuid
from btrfs_model.questions.dumptree.trees import TreeRoot, select_trees
from btrfs_model.volume.image import Image

_UUIDS = {"uuid", "fsid", "dev_uuid", "parent_uuid", "received_uuid", "chunk_tree_uuid"}
_UNUSED = {"reserved", "unused"}


def plain(value: Any, field: str = "") -> Any:
    """Turn what :func:`~btrfs_model.ondisk.items.decode` gives into what JSON has.

    `value`: a record or part of one.
    `field`: name of the field that it stands in.
    """
    if isinstance(value, int):
        return value
    if isinstance(value, bytes):
        if field == "name":
            return value.decode("utf-8", "surrogateescape")
        return uuid(value) if field in _UUIDS else value.hex()
    if isinstance(value, (Key, DiskKey)):
        return _key(value)
    if hasattr(value, "_fields"):
        return {
            name: part if type(part) is int else plain(part, name)
            for name, part in zip(value._fields, value, strict=True)
            if part is not None and name not in _UNUSED
        }
    return [plain(part, field) for part in value]


def _key(key: Key | DiskKey) -> dict[str, Any]:
    return {
        "objectid": key.objectid,
        "type": key.type,
        "type_name": item_type_name(key.type),
        "offset": key.offset,
    }


def dump_tree_json(
    image: Image,
    out: BinaryIO,
    tree: int | None = None,
    *,
    min_key: Key | None = None,
    max_key: Key | None = None,
    objectid: int | None = None,
) -> None:
    """Write the items of trees as lines of JSON.

    `image`: the image.
    `out`: gets ASCII.
    `tree`: id of the only tree to write.
    `min_key`, `max_key`: first and last key of the items to write.
    `objectid`: write only items of this objectid.
    Raises CorruptImageError: for a broken block or item, after what comes before it was written.
    Raises SubvolumeNotFoundError: when there is no tree of that id.
    """
    keys = key_range(min_key, max_key, objectid)
    encode = json.JSONEncoder(separators=(",", ":")).encode
    for root in select_trees(image, tree):
        for record in _items(image, root, keys.min, keys.max):
            out.write(encode(record).encode("ascii") + b"\n")


def _items(image: Image, root: TreeRoot, low: Key, high: Key) -> Iterator[dict[str, Any]]:
    csum_size = image.superblock.csum_size
    leaf = generation = owner = -1
    for item in root.tree.items(low, high):
        if item.block != leaf:
            leaf = item.block
            header = HEADER.unpack(image.block(leaf))
            generation, owner = header.generation, header.owner
        unpack = partial(decode, item.key, csum_size=csum_size)
        decoded = item.decode(unpack, image.path, root.key.objectid)
        yield {
            "tree": root.key.objectid,
            "tree_offset": root.key.offset,
            "leaf": leaf,
            "slot": item.slot,
            "generation": generation,
            "owner": owner,
            "key": _key(item.key),
            "size": len(item.data),
            "item": plain(decoded),
        }
