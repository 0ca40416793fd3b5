# SPDX-License-Identifier: GPL-2.0-only
"""Files and subvolumes made item by item, for tests of what lies below the calls for files."""

import struct

import btrfs_model as bm
from btrfs_model.mount.space.data import ensure_data
from btrfs_model.ondisk.hashes import csum, name_hash
from btrfs_model.ondisk.keys import ItemType, ObjectId
from btrfs_model.ondisk.structs import (
    DIR_ITEM,
    FILE_EXTENT_ITEM,
    INODE_ITEM,
    INODE_REF,
    ROOT_REF,
    DiskKey,
    InodeItem,
    RawDirItem,
    RawFileExtent,
    RawInodeRef,
    RawRootRef,
    Timespec,
)

_REG, _DIR = 1, 2
_TOP = 256
SECTOR = 4096


class Folder:
    """The root directory of a subvolume whose items are written by hand.

    Inode numbers and indexes go on from what is there.
    """

    def __init__(self, fs: bm.WritableFilesystem, root: int = 5) -> None:
        self.fs = fs
        self.root = root
        tree = fs.writer.tree(root)
        last = tree.last((2**64 - 257, 255, 2**64 - 1))
        index = tree.last((_TOP, ItemType.DIR_INDEX, 2**64 - 1))
        self.next_ino = max(last.key.objectid, _TOP) + 1
        self.next_index = index.key.offset + 1 if index.key[:2] == (_TOP, 96) else 2
        self.files: dict[bytes, tuple[int, int]] = {}

    def inode(self, mode: int, size: int = 0, nbytes: int = 0) -> bytes:
        transid, time = self.fs.transid, Timespec(1, 2)
        return INODE_ITEM.pack(
            InodeItem(transid, transid, size, nbytes, 0, 1, 0, 0, mode, 0, 0, 0, (0,) * 4,
                      time, time, time, time)
        )  # fmt: skip

    def resize(self, change: int) -> None:
        """Account for a name in the directory's inode, and the subvolume's root item."""
        key = (_TOP, ItemType.INODE_ITEM, 0)
        item = INODE_ITEM.unpack(self.fs.writer.get(self.root, key))
        item = item._replace(size=item.size + change, transid=self.fs.transid)
        self.fs.writer.update(self.root, key, 0, INODE_ITEM.pack(item))
        self.fs.live_root(self.root).ctransid = self.fs.transid

    def entry(self, name: bytes, location: DiskKey, kind: int) -> int:
        """Add an entry; returns its index."""
        writer, index = self.fs.writer, self.next_index
        payload = DIR_ITEM.pack(RawDirItem(location, self.fs.transid, 0, len(name), kind)) + name
        writer.insert(self.root, (_TOP, ItemType.DIR_ITEM, name_hash(name)), payload)
        writer.insert(self.root, (_TOP, ItemType.DIR_INDEX, index), payload)
        self.resize(2 * len(name))
        self.next_index += 1
        return index

    def _new(self, name: bytes, inode: bytes, kind: int) -> int:
        ino, index = self.next_ino, self.next_index
        reference = INODE_REF.pack(RawInodeRef(index, len(name))) + name
        self.fs.writer.insert_many(
            self.root,
            [((ino, ItemType.INODE_ITEM, 0), inode), ((ino, ItemType.INODE_REF, _TOP), reference)],
        )
        self.entry(name, DiskKey(ino, ItemType.INODE_ITEM, 0), kind)
        self.next_ino += 1
        self.files[name] = (ino, index)
        return ino

    def mkdir(self, name: bytes) -> int:
        """An empty directory; returns its inode number."""
        return self._new(name, self.inode(0o40755), _DIR)

    def write_inline(self, name: bytes, data: bytes) -> int:
        """A small file."""
        ino = self._new(name, self.inode(0o100644, len(data), len(data)), _REG)
        head = struct.pack("<QQBBHB", self.fs.transid, len(data), 0, 0, 0, 0)
        self.fs.writer.insert(self.root, (ino, ItemType.EXTENT_DATA, 0), head + data)
        return ino

    def write_extents(self, name: bytes, extents: list[bytes]) -> list[tuple[int, ...]]:
        """A file of several extents, each of whole sectors; returns their references."""
        fs, size = self.fs, sum(map(len, extents))
        ensure_data(fs, size)
        ino = self._new(name, self.inode(0o100644, size, size), _REG)
        rows, items, at = [], [], 0
        for data in extents:
            bytenr, got = fs.writer.reserve_data(len(data), len(data))
            assert got == len(data)
            physical, _ = fs.image.map(bytenr)
            fs.memory.buffer[physical : physical + got] = data
            extent = RawFileExtent(fs.transid, got, 0, 0, 0, 1, bytenr, got, 0, got)
            items.append(((ino, ItemType.EXTENT_DATA, at), FILE_EXTENT_ITEM.pack(extent)))
            rows.append((bytenr, got, 0, self.root, ino, at))
            sums = b"".join(
                csum(fs.image.superblock.csum_type, data[n : n + SECTOR])
                for n in range(0, got, SECTOR)
            )
            fs.writer.insert_csums(bytenr, sums, got // SECTOR)
            at += got
        fs.writer.insert_each(self.root, items)
        fs.writer.alloc_data_ref(rows)
        return rows

    def punch(self, rows: list[tuple[int, ...]]) -> None:
        """Take extents away from a file; the filesystem needs no items for holes."""
        fs = self.fs
        for _, size, _, root, ino, at in rows:
            fs.writer.delete(root, (ino, ItemType.EXTENT_DATA, at))
            key = (ino, ItemType.INODE_ITEM, 0)
            item = INODE_ITEM.unpack(fs.writer.get(root, key))
            fs.writer.update(
                root, key, 0, INODE_ITEM.pack(item._replace(nbytes=item.nbytes - size))
            )
        fs.writer.drop_data_ref(rows)

    def unlink(self, name: bytes) -> None:
        """Remove a file without data of its own, or an empty directory."""
        ino, index = self.files.pop(name)
        writer = self.fs.writer
        writer.delete(self.root, (_TOP, ItemType.DIR_ITEM, name_hash(name)))
        writer.delete(self.root, (_TOP, ItemType.DIR_INDEX, index))
        writer.delete_range(self.root, (ino, 0, 0), (ino, 255, 2**64 - 1), backward=True)
        self.resize(-2 * len(name))

    def subvolume(self, name: bytes) -> "Folder":
        """A new subvolume (``create_subvol()``, less the times)."""
        fs, writer = self.fs, self.fs.writer
        number, uuid = fs.next_root_id(), fs.new_uuid()
        writer.new_tree(number, shareable=True)
        state = writer.tree_state(number)
        item = fs.live_root(self.root).item._replace(
            generation=fs.transid, bytenr=state.bytenr, level=0, bytes_used=fs.nodesize,
            last_snapshot=0, flags=0, refs=1, uuid=uuid, parent_uuid=bytes(16),
            otransid=fs.transid, ctransid=fs.transid, root_dirid=_TOP,
        )  # fmt: skip
        fs.add_root(number, item)
        reference = INODE_REF.pack(RawInodeRef(0, 2)) + b".."
        inode = self.inode(0o40755, 0, fs.nodesize)
        items = [((_TOP, ItemType.INODE_ITEM, 0), inode), ((_TOP, 12, _TOP), reference)]
        writer.insert_many(number, items)
        index = self.entry(name, DiskKey(number, ItemType.ROOT_ITEM, 0), _DIR)
        reference = ROOT_REF.pack(RawRootRef(_TOP, index, len(name))) + name
        roots = ObjectId.ROOT_TREE
        writer.insert(roots, (number, ItemType.ROOT_BACKREF, self.root), reference)
        writer.insert(roots, (self.root, ItemType.ROOT_REF, number), reference)
        low, high = struct.unpack("<QQ", uuid)
        key = (low, ItemType.UUID_KEY_SUBVOL, high)
        writer.insert(ObjectId.UUID_TREE, key, struct.pack("<Q", number))
        return Folder(fs, number)
