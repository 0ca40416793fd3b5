# SPDX-License-Identifier: GPL-2.0-only
"""How a page shows items: the steps of a dump, the words in it, and where fields lead."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from btrfs_model.drawings.explore.words import WORDS
from btrfs_model.native.text import ITEM, Step
from btrfs_model.ondisk import structs
from btrfs_model.ondisk.hashes import CSUM_NAMES
from btrfs_model.ondisk.keys import ItemType, ObjectId, objectid_name
from btrfs_model.ondisk.layout import Layout
from btrfs_model.ondisk.structs import SUPER_BLOCK
from btrfs_model.ondisk.superblock import (
    INCOMPAT_FLAGS,
    METADATA_UUID,
    SUPER_FLAGS,
    SUPER_OFFSETS,
    SUPPORTED,
    SUPPORTED_SUPER_FLAGS,
)
from btrfs_model.questions.dumptree import templates
from btrfs_model.questions.dumptree.text import block_parts

_LEADS: Final = {
    "btrfs_dir_item.location": "key",
    "btrfs_free_space_header.location": "key",
    "btrfs_file_extent_item.disk_bytenr": "address",
    "btrfs_root_item.bytenr": "address",
    "btrfs_key_ptr.blockptr": "address",
    "btrfs_header.owner": "tree",
    "btrfs_extent_inline_ref.offset decimal": "address",
    "btrfs_extent_inline_ref.offset objectid": "tree",
    "btrfs_extent_data_ref.root": "tree",
    "btrfs_extent_data_ref.objectid": "inode of root",
    "btrfs_extent_owner_ref.root_id": "tree",
    "btrfs_dev_extent.chunk_offset": "address",
    "btrfs_super_block.root": "address",
    "btrfs_super_block.chunk_root": "address",
    "btrfs_super_block.log_root": "address",
}
"""Where a field leads: to an address, a tree, an inode, a key in the same tree (by its type)."""

_KEY_LEADS: Final[dict[int, tuple[str, str]]] = {
    ItemType.INODE_REF: ("inode", "inode"),
    ItemType.INODE_EXTREF: ("inode", ""),
    ItemType.XATTR_ITEM: ("inode", ""),
    ItemType.ORPHAN_ITEM: ("", "inode"),
    ItemType.DIR_LOG_ITEM: ("inode", ""),
    ItemType.DIR_LOG_INDEX: ("inode", ""),
    ItemType.DIR_ITEM: ("inode", ""),
    ItemType.DIR_INDEX: ("inode", ""),
    ItemType.EXTENT_DATA: ("inode", ""),
    ItemType.EXTENT_CSUM: ("", "address"),
    ItemType.ROOT_ITEM: ("tree", ""),
    ItemType.ROOT_REF: ("tree", "tree"),
    ItemType.ROOT_BACKREF: ("tree", "tree"),
    ItemType.EXTENT_ITEM: ("address", ""),
    ItemType.METADATA_ITEM: ("address", ""),
    ItemType.TREE_BLOCK_REF: ("address", "tree"),
    ItemType.EXTENT_DATA_REF: ("address", ""),
    ItemType.SHARED_BLOCK_REF: ("address", "address"),
    ItemType.SHARED_DATA_REF: ("address", "address"),
    ItemType.CHUNK_ITEM: ("", "address"),
}
"""Where objectid and offset of a key lead."""

_SAYS: Final[dict[int, tuple[str, ...]]] = {
    ItemType.INODE_ITEM: ("size",),
    ItemType.INODE_REF: ("name",),
    ItemType.INODE_EXTREF: ("name",),
    ItemType.XATTR_ITEM: ("name",),
    ItemType.DIR_ITEM: ("name",),
    ItemType.DIR_INDEX: ("name",),
    ItemType.EXTENT_DATA: ("disk_bytenr", "num_bytes", "REST"),
    ItemType.ROOT_ITEM: ("bytenr",),
    ItemType.ROOT_REF: ("name",),
    ItemType.ROOT_BACKREF: ("name",),
    ItemType.EXTENT_ITEM: ("refs",),
    ItemType.METADATA_ITEM: ("refs",),
    ItemType.BLOCK_GROUP_ITEM: ("used",),
    ItemType.CHUNK_ITEM: ("length",),
}
"""Fields that stand behind a key."""


_CSUM_SIZE: Final = 4
_STRUCTS: Final = (
    structs.CHUNK, structs.DIR_ITEM, structs.EXTENT_DATA_REF, structs.EXTENT_INLINE_REF,
    structs.EXTENT_ITEM, structs.FILE_EXTENT_ITEM, structs.HEADER, structs.INODE_ITEM,
    structs.INODE_REF, structs.ITEM, structs.KEY_PTR, structs.ROOT_BACKUP, structs.ROOT_ITEM,
    structs.ROOT_REF, structs.SHARED_DATA_REF, structs.STRIPE, structs.SUPER_BLOCK,
)  # fmt: skip
"""What a page reads itself."""


def _places(layout: Layout[Any]) -> dict[str, Any]:
    """Return the size of a structure, and byte and width of each field."""
    fields = layout.dtype.fields
    assert fields is not None
    places = {name: (at, kind.itemsize) for name, (kind, at, *_) in fields.items()}
    return {"size": layout.size, "fields": places}


def _superblock() -> str:
    """Return a template with the fields of the superblock."""
    fields = SUPER_BLOCK.dtype.fields
    assert fields is not None
    how = {"csum": f":{_CSUM_SIZE}", "fsid": "|uuid", "metadata_uuid": "|uuid"}
    text = []
    for name, (kind, *_) in fields.items():
        if name in how or (kind.shape == () and kind.kind == "u"):
            text.append(f"{name} {{{name}{how.get(name, '')}}}")
    return "\n".join(text)


class Nowhere:
    """A file that keeps nothing."""

    def write(self, data: Any) -> int:
        """Take a piece."""
        return len(data)


def make_form() -> dict[str, Any]:
    """Return, as JSON has it, all that is needed to show items as a dump does.

    How long a checksum is, the page knows of each image: here it is 4 bytes.
    """
    parts = block_parts(_CSUM_SIZE, csum_headers=True, csum_items=True)
    names = {function: name for name, function in templates.WORDS.items()}
    parts["super"] = [
        # which the page alone follows
        step._replace(how="text") if step.field.endswith(".magic") else step
        for step in templates.structure(SUPER_BLOCK, _superblock(), indent=0)
    ]
    starts, steps = dict[str, int](), list[Step]()
    for part, some in parts.items():
        starts[str(int(part)) if isinstance(part, int) else part] = len(steps)
        steps += [*some, Step("end")]
    return {
        "steps": [_step(step, names) for step in steps],
        "starts": starts,
        "item": ITEM,
        "flags": {
            kind: [[[str(bit), name] for bit, name in names_of.items()], none]
            for kind, (names_of, none) in templates.FLAGS.items()
        },
        "names": templates.NAMES,
        "object_names": {str(int(one)): objectid_name(one) for one in ObjectId},
        "leads": _LEADS,
        "about": WORDS,
        "key_leads": {int(kind): leads for kind, leads in _KEY_LEADS.items()},
        "says": {int(kind): fields for kind, fields in _SAYS.items()},
        "structs": {layout.name: _places(layout) for layout in _STRUCTS},
        "types": {kind.name: int(kind) for kind in ItemType},
        "super_offsets": SUPER_OFFSETS,
        "csum_types": {int(kind): name for kind, name in CSUM_NAMES.items()},
        "incompat": {
            "names": {str(bit): name for bit, name in INCOMPAT_FLAGS.items()},
            "known": str(SUPPORTED),
            "metadata_uuid": str(METADATA_UUID),
        },
        "super_flags": {
            "names": {str(bit): name for bit, name in SUPER_FLAGS.items()},
            "known": str(SUPPORTED_SUPER_FLAGS),
        },
        "objects": {one.name: str(int(one)) for one in ObjectId},
    }


def _step(step: Step, names: dict[Callable[[int], str], str]) -> list[Any]:
    """Return a step as ``form.js`` reads it; numbers of 64 bits are strings."""
    word = names[step.word] if step.word else ""
    row = [
        step.how, step.text.decode("ascii"), step.place, step.width, step.field, word,
        int(step.in_item), step.least, step.jump, str(step.value), str(step.mask),
    ]  # fmt: skip
    usual: list[Any] = ["", "", 0, 0, "", "", 0, 0, 0, "0", str(2**64 - 1)]
    while row and row[-1] == usual[len(row) - 1]:
        row.pop()
    return row
