# SPDX-License-Identifier: GPL-2.0-only
"""Extended attributes: SET_XATTR and REMOVE_XATTR."""

from __future__ import annotations

from typing import TYPE_CHECKING

from btrfs_model.base.counters import current
from btrfs_model.ondisk.hashes import name_hash
from btrfs_model.ondisk.keys import ItemType, Key
from btrfs_model.reference.compare import Change
from btrfs_model.reference.send.explain import Item

if TYPE_CHECKING:
    from btrfs_model.ondisk.items import DirItem
    from btrfs_model.reference.send.context import SendContext
    from btrfs_model.reference.send.names import Names

_CAPS = b"security.capability"
_ACLS = (b"system.posix_acl_access", b"system.posix_acl_default")
# posix_acl_xattr_header of version 2: what stands for an empty acl
_EMPTY_ACL = (2).to_bytes(4, "little")


class Xattrs:
    """Sends extended attributes.

    Parameters
    ----------
    sctx : SendContext
        The send.
    names : Names
        Its paths.
    """

    def __init__(self, sctx: SendContext, names: Names) -> None:
        self.sctx = sctx
        self.names = names

    def changed_xattr(self, change: Change) -> None:
        """Send what differs in an xattr item: in one item are all names with the same hash."""
        left = self._left() if change != Change.DELETED else []
        right = self._right() if change != Change.NEW else []
        item = Item(self.sctx.key, change)
        self.sctx.because("xattr-set", item=item)
        values = {entry.name: entry.data for entry in right}
        for entry in left:
            if values.get(entry.name) != entry.data:
                self.process_new_xattr(entry)
        self.sctx.because("xattr-removed", item=item)
        kept = {entry.name for entry in left}
        for entry in right:
            if entry.name not in kept:
                self.send_remove_xattr(entry.name)

    def _left(self) -> list[DirItem]:
        return self.sctx.dir_entries(self.sctx.path, self.sctx.root)

    def _right(self) -> list[DirItem]:
        return self.sctx.dir_entries(self.sctx.right_path, self.sctx.parent_tree)

    def process_new_xattr(self, entry: DirItem) -> None:
        """Send an attribute that is new or has a new value."""
        # sent last, because a chown would drop it; the kernel compares by strncmp()
        if _CAPS.startswith(entry.name):
            return
        value = entry.data
        # an empty acl is stored as nothing, which receivers refuse
        if not value and any(acl.startswith(entry.name) for acl in _ACLS):
            value = _EMPTY_ACL
        self.send_set_xattr(entry.name, value)

    def process_all_new_xattrs(self) -> None:
        """Send all attributes of the current inode, which took the number of another one."""
        sctx = self.sctx
        wanted = (sctx.cur_ino, ItemType.XATTR_ITEM)
        sctx.path = path = sctx.search_path()
        for key in sctx.for_each_slot(sctx.root, Key(*wanted, 0), path):
            if key[:2] != wanted:
                break
            sctx.because("xattr-set", item=Item(key, Change.NEW))
            for entry in self._left():
                self.process_new_xattr(entry)

    def send_capabilities(self) -> None:
        """Send security.capability, if the inode has it."""
        current().count("btrfs_lookup_xattr")
        key = Key(self.sctx.cur_ino, ItemType.XATTR_ITEM, name_hash(_CAPS))
        entry = self.sctx.lookup_name(self.sctx.root, key, _CAPS)
        if entry is not None:
            self.sctx.because("capabilities")
            self.send_set_xattr(_CAPS, entry.data)

    def send_set_xattr(self, name: bytes, value: bytes) -> None:
        """Send SET_XATTR."""
        path = self.names.get_cur_inode_path()
        self.sctx.send_cmd("set_xattr", path=path, xattr_name=name, xattr_data=value)

    def send_remove_xattr(self, name: bytes) -> None:
        """Send REMOVE_XATTR."""
        path = self.names.get_cur_inode_path()
        self.sctx.send_cmd("remove_xattr", path=path, xattr_name=name)
