# SPDX-License-Identifier: GPL-2.0-only
"""What send makes of a file extent: WRITE, CLONE, ENCODED_WRITE or UPDATE_EXTENT.

Before the data of an extent is written, the back references of its disk extent are walked, to find
a place that the receiver has already and that the range can be cloned from. How far that search
goes and which place wins has changed often: each change is a toggle (``send-clone-*``,
``send-backref-*``), and both sides stand here next to each other.
"""

from __future__ import annotations

import errno
import stat
from dataclasses import dataclass
from typing import TYPE_CHECKING

from btrfs_model.base.codes import EUCLEAN
from btrfs_model.base.counters import current
from btrfs_model.ondisk.constants import Compression, ExtentFlag
from btrfs_model.ondisk.keys import ItemType, Key
from btrfs_model.patches import Patch
from btrfs_model.reference.backref import BackrefWalk, Walker
from btrfs_model.reference.compare import Change
from btrfs_model.reference.ctree import key_at, next_leaf, nritems, search_slot
from btrfs_model.reference.logical import extent_from_logical
from btrfs_model.reference.send.context import LruCache, SendContext
from btrfs_model.reference.send.data import DataReader, Extent, parse_file_extent
from btrfs_model.reference.send.explain import Item
from btrfs_model.reference.send.holes import Holes

if TYPE_CHECKING:
    from collections.abc import Sequence

    from btrfs_model.ondisk.structs import RawExtentItem
    from btrfs_model.reference.send.names import Names
    from btrfs_model.volume.subvolume import Subvolume

_MAX = 2**64 - 1
_PAGE = 4096
# the part of the command buffer that is not file data
_NOT_DATA = 16384
# the largest sector size that a receiver may have
_CLONE_ALIGN = 65536
_MAX_REFS, _MAX_REFS_BEFORE = 1024, 64
_BACKREF_CACHE_SIZE = 128
_BACKREF_CACHE_ROOTS, _BACKREF_CACHE_ROOTS_BEFORE = 17, 12
# BTRFS_ENCODED_IO_COMPRESSION_*
_ENCODED: dict[int, int] = {Compression.ZLIB: 1, Compression.ZSTD: 2}
_ENCODED_LZO_4K = 3


@dataclass
class CloneRoot:
    """A subvolume that may be cloned from, and the place in it that the present extent is at."""

    source: Subvolume
    ino: int = _MAX
    offset: int = 0
    num_bytes: int = 0
    found_ref: bool = False

    @property
    def id(self) -> int:
        """The id of the subvolume."""
        return self.source.id

    def forget(self) -> None:
        """Start over for another extent."""
        self.ino, self.offset, self.num_bytes, self.found_ref = _MAX, 0, 0, False


@dataclass
class _Target:
    """The range of the file being sent that is still to be cloned."""

    extent: Extent
    data_offset: int
    offset: int
    size: int


class Extents:
    """Sends file extents.

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
        self.holes = Holes(sctx, names)
        self.reader = DataReader(sctx)
        # in the order of their ids, as the kernel sorts them
        self.clone_roots = {s.id: CloneRoot(s) for s in sctx.request.clone_roots}
        # the kernel does not mind that a root was given twice, or is the snapshot itself
        self.clone_root_count = len(sctx.request.clone_roots)
        self.backref_cache = LruCache()

    def process_extent(self) -> None:
        """Send the file extent item that ``sctx.path`` ends at."""
        current().count("process_extent")
        sctx = self.sctx
        if stat.S_ISLNK(sctx.cur_inode.mode):
            return
        extent = parse_file_extent(sctx, sctx.path, sctx.root)
        if sctx.parent_root and not sctx.cur_inode_new:
            if not self.holes.is_extent_unchanged(sctx.parent_root, extent):
                self.send_write_or_clone(extent, self.find_extent_clone(extent))
            self.holes.maybe_send_hole(sctx.path, extent)
        elif extent.is_inline or extent.is_on_disk:
            # new files simply have holes where nothing was written
            self.send_write_or_clone(extent, self.find_extent_clone(extent))

    def process_all_extents(self) -> None:
        """Send all extents of the current inode, which took the number of another one."""
        sctx = self.sctx
        wanted = (sctx.cur_ino, ItemType.EXTENT_DATA)
        sctx.path = path = sctx.search_path()
        for key in sctx.for_each_slot(sctx.root, Key(*wanted, 0), path):
            if key[:2] != wanted:
                break
            self.process_extent()

    # ------------------------------------------------------------ finding a clone source ----

    def find_extent_clone(self, extent: Extent) -> CloneRoot | None:
        """Find a place that the receiver has already and that refers to the same extent."""
        sctx = self.sctx
        current().count("find_extent_clone")
        if extent.start >= sctx.cur_inode.size or extent.is_inline or not extent.disk_bytenr:
            return None
        for clone in self.clone_roots.values():
            clone.forget()
        search = _CloneSearch(self, extent)
        single = Patch.SEND_SINGLE_EXTENT_SEARCH in sctx
        if not single and not self._extent_search(search, extent):
            return None
        own_only = Patch.SEND_SKIP_OWN_REF in sctx and self.clone_root_count == 1
        cached = Patch.SEND_BACKREF_CACHE in sctx
        walk = BackrefWalk(
            forest=sctx.forest,
            bytenr=extent.disk_bytenr,
            extent_item_pos=0 if extent.compression else extent.offset,
            restart=Patch.SEARCH_NO_RESTART not in sctx,
            iterate_cached=Patch.SEND_BACKREF_SKIP in sctx,
            check_extent_item=search.check_extent_item if single else None,
            skip_data_ref=search.skip_self_data_ref if own_only else None,
            cache_lookup=self.lookup_backref_cache if cached else None,
            cache_store=self.store_backref_cache if cached else None,
            iterate=search.iterate_backrefs,
        )
        Walker(walk).iterate_extent_inodes()
        # before v6.2 the walk had to come by; it cannot where our own reference is skipped
        if not (Patch.SEND_CLONE_LARGEST in sctx or own_only or search.found_itself):
            raise sctx.fail(errno.EIO)
        return search.choose_root() if search.found else None

    def _extent_search(self, search: _CloneSearch, extent: Extent) -> bool:
        """Whether the extent may be cloned; before v6.2 its item is searched by itself."""
        sctx = self.sctx
        found = extent_from_logical(
            sctx.forest, extent.disk_bytenr, restart=Patch.SEARCH_NO_RESTART not in sctx
        )
        if found is None:
            return False
        if found.flags & ExtentFlag.TREE_BLOCK:
            raise sctx.fail(errno.EIO)
        return found.refs <= search.max_refs and not search.is_unshared(found.refs)

    def lookup_backref_cache(self, leaf: int) -> Sequence[int] | None:
        """Return the clone roots that reach a leaf, when they are known."""
        if not self.backref_cache:
            return None
        current().count("btrfs_lru_cache_lookup")
        roots: Sequence[int] | None = self.backref_cache.lookup(leaf)
        return roots

    def store_backref_cache(self, leaf: int, roots: list[int]) -> None:
        """Remember which of the roots that reach a leaf may be cloned from."""
        limit = _BACKREF_CACHE_ROOTS
        if Patch.SEND_BACKREF_CACHE_17 not in self.sctx:
            limit = _BACKREF_CACHE_ROOTS_BEFORE
        known = [root for root in roots if root in self.clone_roots]
        if len(known) <= limit:
            current().count("btrfs_lru_cache_store")
            self.backref_cache.store(leaf, 0, known, _BACKREF_CACHE_SIZE)

    # ---------------------------------------------------------------------------- clone -----

    def send_write_or_clone(self, extent: Extent, clone: CloneRoot | None) -> None:
        """Send the part of an extent that lies inside the file."""
        sctx = self.sctx
        end = min(extent.end, sctx.cur_inode.size)
        if extent.start >= end:
            return
        change = Change.NEW if sctx.cur_inode_new_gen else sctx.change
        key = Key(*key_at(sctx.path.leaf, sctx.path.slots[0]))
        sctx.because(_write_cause(extent), item=Item(key, change))
        if clone is not None and self._can_clone(extent, end, clone):
            self.clone_range(extent, clone, end - extent.start)
        else:
            if clone is not None:
                sctx.because_of_rule("write-unaligned")
            self.send_extent_data(extent, extent.start, end - extent.start)
        sctx.cur_inode_next_write_offset = end

    def _can_clone(self, extent: Extent, end: int, clone: CloneRoot) -> bool:
        if end % self.sctx.image.sectorsize == 0:
            return True
        if Patch.SEND_CLONE_UNALIGNED_TAIL not in self.sctx or end != self.sctx.cur_inode.size:
            return False
        # an unaligned end can only be cloned where it is the end of both files
        source = self.names.need_inode_info(clone.source.tree, clone.ino)
        if clone.offset + end - extent.start != source.size:
            return False
        # the file of the receiver may still be larger: there the clone would end before its end
        if self.sctx.parent_root and Patch.SEND_TRUNCATE_BEFORE_CLONE in self.sctx:
            path = self.names.get_cur_inode_path()
            self.sctx.because_of_rule("clone-truncate")
            self.sctx.send_cmd("truncate", path=path, size=extent.start)
        return True

    def clone_range(self, extent: Extent, clone: CloneRoot, size: int) -> None:
        """Walk the items of the source; clone where they refer to the same data, write the rest."""
        sctx, tree = self.sctx, clone.source.tree
        target = _Target(extent, extent.offset, extent.start, size)
        # the receiver might have inlined a first block that is not inline here
        if not clone.offset and size == sctx.image.sectorsize:
            sctx.because_of_rule("write-first-sector")
            self.send_extent_data(extent, target.offset, size)
            return
        source_size = self.names.need_inode_info(tree, clone.ino).size
        path, kind = sctx.search_path(), ItemType.EXTENT_DATA
        found = search_slot(tree, (clone.ino, kind, clone.offset), path)
        if not found and path.slots[0] > 0:
            before = key_at(path.leaf, path.slots[0] - 1)
            path.slots[0] -= before[:2] == (clone.ino, kind)
        more = True
        while more:
            if path.slots[0] >= nritems(path.leaf) and not next_leaf(tree, path):
                break
            if key_at(path.leaf, path.slots[0])[:2] != (clone.ino, kind):
                break
            source = parse_file_extent(sctx, path, tree)
            more = self._clone_from_item(target, clone, source, source_size)
            path.slots[0] += 1
        if target.size:
            sctx.because_of_rule("write-source-ends")
            self.send_extent_data(extent, target.offset, target.size)

    def _clone_from_item(
        self, target: _Target, clone: CloneRoot, source: Extent, source_size: int
    ) -> bool:
        """Clone or write what one item of the source covers; False: write the rest."""
        sctx, wanted = self.sctx, target.extent.disk_bytenr
        size = -(-source.ram_bytes // _PAGE) * _PAGE if source.is_inline else source.num_bytes
        if source.start + size <= clone.offset:
            return True
        if source.start > clone.offset:
            # a hole without an item
            hole = min(source.start - clone.offset, target.size)
            sctx.because_of_rule("write-source-hole")
            self.send_extent_data(target.extent, target.offset, hole)
            self._advance(target, clone, hole)
            target.data_offset += hole
            if not target.size:
                return False
        if source.start >= clone.offset + target.size or source.start >= source_size:
            return False
        crossed = False
        if source.start + size > source_size:
            size = source_size - source.start
            crossed = Patch.SEND_CLONE_SRC_EOF in sctx
        data_offset = source.offset
        if source.disk_bytenr == wanted:
            clone.offset = source.start
            if data_offset < target.data_offset < data_offset + size:
                skip = target.data_offset - data_offset
                size -= skip
                data_offset += skip
                clone.offset += skip
        piece = min(size, target.size)
        if source.disk_bytenr == wanted and data_offset == target.data_offset:
            self._clone_piece(target, clone, source_size, piece)
        elif crossed and piece < target.size:
            return False
        else:
            sctx.because_of_rule("write-source-differs")
            self.send_extent_data(target.extent, target.offset, piece)
        self._advance(target, clone, piece)
        # a file that is cloned from itself: no further than it reaches by now
        if (clone.id, clone.ino) == (
            sctx.root.objectid,
            sctx.cur_ino,
        ) and clone.offset >= sctx.cur_inode_next_write_offset:
            return False
        target.data_offset += piece
        return target.size > 0

    @staticmethod
    def _advance(target: _Target, clone: CloneRoot, size: int) -> None:
        target.offset += size
        target.size -= size
        clone.offset += size

    def _clone_piece(self, target: _Target, clone: CloneRoot, source_size: int, size: int) -> None:
        source_end, aligned = clone.offset + size, size
        # the unaligned end of the source cannot be cloned into the middle of a file: clone what is
        # aligned for every receiver and write the rest
        if (
            source_end == source_size
            and source_end % _CLONE_ALIGN
            and target.offset + size < self.sctx.cur_inode.size
        ):
            aligned = size // _CLONE_ALIGN * _CLONE_ALIGN
        if aligned:
            self.sctx.because_of_rule("clone-source")
            self.send_clone(target.offset, aligned, clone)
        if aligned < size:
            self.sctx.because_of_rule("write-source-tail")
            self.send_extent_data(target.extent, target.offset + aligned, size - aligned)

    # ------------------------------------------------------------------------- commands -----

    def send_clone(self, offset: int, size: int, clone: CloneRoot) -> None:
        """Send CLONE."""
        names, item = self.names, clone.source.item
        path = names.get_cur_inode_path()
        if clone.id == self.sctx.root.objectid:
            gen = names.get_inode_gen(self.sctx.root, clone.ino)
            source = names.get_cur_path(clone.ino, gen)
        else:
            source = names.get_inode_path(clone.source.tree, clone.ino)
        self.sctx.send_cmd(
            "clone",
            file_offset=offset,
            clone_len=size,
            path=path,
            clone_uuid=item.received_uuid if any(item.received_uuid) else item.uuid,
            clone_ctransid=item.ctransid,
            clone_path=source,
            clone_offset=clone.offset,
        )

    def send_extent_data(self, extent: Extent, offset: int, size: int) -> None:
        """Send a range of an extent as data."""
        current().count("send_extent_data")
        request = self.sctx.request
        if request.no_file_data:
            path = self.names.get_cur_inode_path()
            self.sctx.send_cmd("update_extent", path=path, file_offset=offset, size=size)
            return
        # a part of an extent may be smaller plain than the whole is compressed
        packed = len(extent.inline) if extent.is_inline else extent.disk_num_bytes
        if request.compressed and extent.compression and packed <= size:
            self.send_encoded(extent, offset, size)
            return
        read_size = self.sctx.max_size - _NOT_DATA
        for start in range(offset, offset + size, read_size):
            self.send_write(extent, start, min(read_size, offset + size - start))

    def send_write(self, extent: Extent, offset: int, size: int) -> None:
        """Send WRITE."""
        path = self.names.get_cur_inode_path()
        self.reader.open_for_data(extent)
        data = self.reader.read(extent, offset, size)
        self.sctx.send_cmd("write", path=path, file_offset=offset, data=data)

    def send_encoded(self, extent: Extent, offset: int, size: int) -> None:
        """Send a compressed extent as it is (``send_encoded_extent()``, ``_inline_extent()``)."""
        sctx = self.sctx
        lzo = _ENCODED_LZO_4K + (sctx.image.sectorsize // _PAGE).bit_length() - 1
        plain = extent.ram_bytes if extent.is_inline else extent.num_bytes
        encryption = {} if extent.is_inline else {"encryption": 0}
        path = self.names.get_cur_inode_path()
        if not extent.is_inline:
            # the kernel reads into whole pages of its buffer, behind the header of the command,
            # the path, four numbers of 64 bits, two of 32 and the type of the data
            head = 10 + (4 + len(path)) + 4 * (4 + 8) + 2 * (4 + 4) + 2
            if -(-head // _PAGE) * _PAGE + extent.disk_num_bytes > sctx.max_size:
                raise sctx.fail(errno.EOVERFLOW)
        sctx.send_cmd(
            "encoded_write",
            path=path,
            file_offset=offset,
            unencoded_file_len=min(extent.start + plain - offset, size),
            unencoded_len=extent.ram_bytes,
            unencoded_offset=offset - extent.start + extent.offset,
            compression=_ENCODED.get(extent.compression, lzo),
            **encryption,
            data=extent.inline if extent.is_inline else self.reader.raw(extent),
        )


def _write_cause(extent: Extent) -> str:
    """Return why an extent is written that was found nowhere else."""
    if extent.is_inline:
        return "write-inline"
    return "write-no-source" if extent.is_on_disk else "write-unallocated"


class _CloneSearch:
    """The search of a clone source for one extent: what is asked of the backref walk.

    Parameters
    ----------
    extents : Extents
        Has the clone roots.
    extent : Extent
        Being sent.
    """

    def __init__(self, extents: Extents, extent: Extent) -> None:
        self.sctx = sctx = extents.sctx
        self.clone_roots = extents.clone_roots
        self.clone_root_count = extents.clone_root_count
        self.bytenr = extent.disk_bytenr
        self.cur_offset = extent.start
        # the last extent of a file may reach beyond its end
        self.extent_len = min(extent.num_bytes, sctx.cur_inode.size - extent.start)
        # a leaf that is shared with a snapshot may still belong to another subvolume
        self.owner = int.from_bytes(sctx.path.leaf[88:96], "little")
        self.backref_offset = (extent.start - extent.offset) & _MAX
        self.found = 0
        self.found_itself = False

    @property
    def max_refs(self) -> int:
        """Extents with more references are not cloned."""
        return _MAX_REFS if Patch.SEND_CLONE_REFS_1024 in self.sctx else _MAX_REFS_BEFORE

    def is_unshared(self, refs: int) -> bool:
        """Whether only the extent being sent can refer to it."""
        return (
            Patch.SEND_CLONE_NO_BACKREFS in self.sctx and refs == 1 and self.clone_root_count == 1
        )

    def check_extent_item(self, bytenr: int, item: RawExtentItem) -> int:
        """Say of an extent item on the way whether to go on."""
        if bytenr == self.bytenr:
            if item.flags & ExtentFlag.TREE_BLOCK:
                return -EUCLEAN
            if self.is_unshared(item.refs):
                return -errno.ENOENT
        return -errno.ENOENT if item.refs > self.max_refs else 0

    def skip_self_data_ref(self, root: int, ino: int, offset: int) -> bool:
        """Whether a reference is that of the extent being sent."""
        return (root, ino, offset) == (self.owner, self.sctx.cur_ino, self.backref_offset)

    def iterate_backrefs(self, ino: int, offset: int, num_bytes: int, root: int) -> int:
        """Take note of a place that refers to the extent; 1: none can be better."""
        sctx, clone = self.sctx, self.clone_roots.get(root)
        largest = Patch.SEND_CLONE_LARGEST in sctx
        if clone is None:
            return 0
        if root == sctx.root.objectid:
            if (ino, offset) == (sctx.cur_ino, self.cur_offset):
                self.found_itself = True
                if largest:
                    return 0
            # the receiver must have the source already
            behind = offset + self.extent_len > sctx.cur_inode_next_write_offset
            if ino > sctx.cur_ino or (ino == sctx.cur_ino and behind):
                return 0
        self.found += 1
        clone.found_ref = True
        if not largest:
            # before v6.2 the reference of the lowest inode counts
            if ino < clone.ino:
                clone.ino, clone.offset = ino, offset
            elif ino == clone.ino and clone.offset > offset + self.extent_len:
                clone.offset = offset
        elif num_bytes > clone.num_bytes:
            clone.ino, clone.offset, clone.num_bytes = ino, offset, num_bytes
            if Patch.SEND_BACKREF_SKIP in sctx and num_bytes >= self.extent_len:
                return 1
        return 0

    def choose_root(self) -> CloneRoot | None:
        """Return the best of the roots in which a reference was found."""
        best = None
        for clone in self.clone_roots.values():
            if not clone.found_ref:
                continue
            if Patch.SEND_CLONE_LARGEST not in self.sctx:
                if best is None or clone.id == self.sctx.root.objectid:
                    best = clone
            elif best is None or clone.num_bytes > best.num_bytes:
                best = clone
                if clone.num_bytes >= self.extent_len:
                    break
        return best
