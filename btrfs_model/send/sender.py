# SPDX-License-Identifier: GPL-2.0-only
"""The full send, in plain Python: the twin of ``native/send.c``.

The tree of the snapshot is walked item by item in key order. All items of an inode stand together,
so the walk meets, inode by inode::

    INODE_ITEM         create it under its orphan name
    INODE_REF, EXTREF  record its names; they are made when the first other item comes
    XATTR_ITEM         SET_XATTR
    EXTENT_DATA        WRITE or CLONE
    the next inode     finish it: size, owner, mode, capabilities, times

Methods have the names of the kernel's functions.
"""

from __future__ import annotations

import errno
import stat
from typing import TYPE_CHECKING

from btrfs_model.btree.search import (
    Reada,
    key_at,
    next_leaf,
    nritems,
    search_slot,
    search_slot_for_read,
)
from btrfs_model.counters import current
from btrfs_model.kernels import lib
from btrfs_model.ondisk.hashes import name_hash
from btrfs_model.ondisk.items import inode_extrefs, inode_refs, root_ref
from btrfs_model.ondisk.keys import Key
from btrfs_model.ondisk.stream import COMMANDS
from btrfs_model.ondisk.structs import INODE_ITEM
from btrfs_model.send.context import LruCache, RecordedRef, SendContext
from btrfs_model.send.extents import Extents
from btrfs_model.send.names import InodeState, Names
from btrfs_model.send.verity import verity_attributes

if TYPE_CHECKING:
    from btrfs_model.ondisk.structs import InodeItem
    from btrfs_model.send.ioctl import SendRequest

__all__ = ["Sender"]

_TOP = lib.BTRFS_FIRST_FREE_OBJECTID
# objectids that are not inodes: the v1 free space and inode caches
_NOT_INODES = (2**64 - 11, 2**64 - 12)
_DIR_CREATED_CACHE_SIZE = 64
_DIR_UTIMES_CACHE_SIZE = 64
_CAPS = b"security.capability"
_ACLS = (b"system.posix_acl_access", b"system.posix_acl_default")
# posix_acl_xattr_header of version 2: what stands for an empty acl
_EMPTY_ACL = (2).to_bytes(4, "little")

_CREATE_COMMANDS = {
    stat.S_IFREG: "mkfile",
    stat.S_IFDIR: "mkdir",
    stat.S_IFLNK: "symlink",
    stat.S_IFCHR: "mknod",
    stat.S_IFBLK: "mknod",
    stat.S_IFIFO: "mkfifo",
    stat.S_IFSOCK: "mksock",
}


def new_encode_dev(dev: int) -> int:
    """Return a device number as ``new_encode_dev()`` has it, of major << 20 | minor."""
    major, minor = dev >> 20 & 0xFFF, dev & 0xFFFFF
    return minor & 0xFF | major << 8 | (minor & ~0xFF) << 12


class Sender:
    """One full send.

    Parameters
    ----------
    request : SendRequest
        What to send, checked.
    """

    def __init__(self, request: SendRequest) -> None:
        self.sctx = SendContext(request)
        self.names = Names(self.sctx)
        self.extents = Extents(self.sctx, self.names)
        self.dir_created_cache = LruCache()
        self.dir_utimes_cache = LruCache()

    def run(self) -> dict[str, int]:
        """Send; return the number of commands by name.

        Raises
        ------
        OSError, CorruptImageError
            See :func:`btrfs_model.send.send`.
        """
        sctx = self.sctx
        if not sctx.request.omit_header:
            sctx.request.write(sctx.writer.header())
        self.send_subvol_begin()
        self.full_send_tree()
        # the directories whose times are still to be sent, the most recently used first
        for ino, gen in reversed(self.dir_utimes_cache):
            self.send_utimes(ino, gen)
        if not sctx.request.omit_end:
            sctx.send_cmd("end")
        names = [command.name for command in COMMANDS.values()]
        return {name: sctx.commands[name] for name in names if sctx.commands[name]}

    def send_subvol_begin(self) -> None:
        """Send SUBVOL, with the name under which the tree of roots has the subvolume."""
        sctx = self.sctx
        path, roots = sctx.search_path(), sctx.fs.root_tree
        wanted = (sctx.root.objectid, lib.BTRFS_ROOT_BACKREF_KEY)
        found = search_slot_for_read(roots, (*wanted, 0), path, find_higher=True)
        if not found or key_at(path.leaf, path.slots[0])[:2] != wanted:
            raise sctx.fail(errno.ENOENT)
        item = sctx.request.snapshot.item
        sctx.send_cmd(
            "subvol",
            path=sctx.decode(path, roots, root_ref).name,
            uuid=item.received_uuid if any(item.received_uuid) else item.uuid,
            ctransid=item.ctransid,
        )

    # ----------------------------------------------------------------------------- walk -----

    def full_send_tree(self) -> None:
        """Walk the tree of the snapshot."""
        sctx = self.sctx
        reada = Reada.NONE
        if "send-reada-always" in sctx:
            reada = Reada.FORWARD_ALWAYS
        elif "send-reada" in sctx:
            reada = Reada.FORWARD
        sctx.path = path = sctx.search_path(reada)
        first = (_TOP, lib.BTRFS_INODE_ITEM_KEY, 0)
        more = search_slot_for_read(sctx.root, first, path, find_higher=True)
        while more:
            sctx.key = Key(*key_at(path.leaf, path.slots[0]))
            self.changed_cb()
            current().count("btrfs_next_old_item")
            path.slots[0] += 1
            more = path.slots[0] < nritems(path.leaf) or next_leaf(sctx.root, path)
        self.finish_inode_if_needed(at_end=True)

    def changed_cb(self) -> None:
        """Act on the item that the walk stands on."""
        current().count("changed_cb")
        sctx, kind = self.sctx, self.sctx.key.type
        self.finish_inode_if_needed(at_end=False)
        if sctx.key.objectid in _NOT_INODES:
            return
        if kind == lib.BTRFS_INODE_ITEM_KEY:
            self.changed_inode()
        elif sctx.ignore_cur_inode:
            pass
        elif kind in (lib.BTRFS_INODE_REF_KEY, lib.BTRFS_INODE_EXTREF_KEY):
            self.check_inode()
            self.changed_ref()
        elif kind == lib.BTRFS_XATTR_ITEM_KEY:
            self.check_inode()
            self.changed_xattr()
        elif kind == lib.BTRFS_EXTENT_DATA_KEY and sctx.key.objectid == sctx.cur_ino:
            self.extents.process_extent()
        elif kind == lib.BTRFS_VERITY_DESC_ITEM_KEY and not sctx.key.offset:
            sctx.cur_inode_needs_verity = True

    def check_inode(self) -> None:
        """Refuse an item without its inode: "inconsistent snapshot"."""
        if self.sctx.key.objectid != self.sctx.cur_ino:
            raise self.sctx.fail(errno.EIO)

    def finish_inode_if_needed(self, *, at_end: bool) -> None:
        """Make the names of the current inode, and finish it, when their time has come."""
        current().count("finish_inode_if_needed")
        sctx = self.sctx
        if sctx.ignore_cur_inode:
            return
        next_inode = at_end or sctx.key.objectid != sctx.cur_ino
        # the names are complete with the first item that is none
        if (
            sctx.cur_ino
            and sctx.new_refs
            and (next_inode or sctx.key.type > lib.BTRFS_INODE_EXTREF_KEY)
        ):
            self.process_recorded_refs()
            sctx.send_progress = sctx.cur_ino + 1
        if sctx.cur_ino and next_inode:
            self.finish_inode()
        while len(self.dir_utimes_cache) > _DIR_UTIMES_CACHE_SIZE:
            (ino, gen), _ = next(iter(self.dir_utimes_cache.items()))
            self.send_utimes(ino, gen)
            del self.dir_utimes_cache[ino, gen]

    def finish_inode(self) -> None:
        """Send everything of the current inode that comes after its items."""
        sctx, mode = self.sctx, self.sctx.cur_inode.mode
        item = self.names.need_inode_info(sctx.root, sctx.cur_ino)
        # commit ffa7c4296e93 "Btrfs: send, do not issue unnecessary truncate operations" (in 4.17):
        # without it every regular file is truncated to its size
        has_its_size = sctx.cur_inode_next_write_offset == sctx.cur_inode.size
        if stat.S_ISREG(mode) and not ("send-skip-truncate" in sctx and has_its_size):
            path = self.names.get_cur_inode_path()
            sctx.send_cmd("truncate", path=path, size=sctx.cur_inode.size)
        path = self.names.get_cur_inode_path()
        sctx.send_cmd("chown", path=path, uid=item.uid, gid=item.gid)
        if not stat.S_ISLNK(mode):
            path = self.names.get_cur_inode_path()
            sctx.send_cmd("chmod", path=path, mode=item.mode & 0o7777)
        if sctx.request.proto >= 3 and sctx.cur_inode_needs_verity:
            attributes = verity_attributes(sctx)
            path = self.names.get_cur_inode_path()
            sctx.send_cmd("enable_verity", path=path, **attributes)
        self.send_capabilities()
        current().count("get_waiting_dir_move")
        sctx.send_progress = sctx.cur_ino + 1
        # more names may still come into a directory; an empty one is done
        if stat.S_ISDIR(mode) and sctx.cur_inode.size and "send-utimes-cache" in sctx:
            self.cache_dir_utimes(sctx.cur_ino, sctx.cur_inode_gen)
        else:
            self.send_utimes(sctx.cur_ino, sctx.cur_inode_gen)

    # --------------------------------------------------------------------------- inodes -----

    def changed_inode(self) -> None:
        """Start with the inode that the walk stands on."""
        sctx = self.sctx
        item: InodeItem = sctx.decode(sctx.path, sctx.root, INODE_ITEM.unpack)
        sctx.cur_ino = sctx.send_progress = sctx.key.objectid
        sctx.cur_inode_next_write_offset = 0
        sctx.cur_inode_path = b""
        sctx.cur_inode_needs_verity = False
        # unlinked but open when the snapshot was taken
        sctx.ignore_cur_inode = item.nlink == 0
        if sctx.ignore_cur_inode:
            return
        sctx.cur_inode_gen = item.generation
        sctx.cur_inode = item
        if sctx.cur_ino == _TOP:
            return
        is_dir = stat.S_ISDIR(item.mode)
        if is_dir and self.did_create_dir(sctx.cur_ino):
            return
        self.send_create_inode(sctx.cur_ino)
        if is_dir:
            self.cache_dir_created(sctx.cur_ino)

    def send_create_inode(self, ino: int) -> None:
        """Create an inode under its orphan name."""
        current().count("send_create_inode")
        sctx, item = self.sctx, self.sctx.cur_inode
        if ino != sctx.cur_ino:
            item = self.names.need_inode_info(sctx.root, ino)
        command = _CREATE_COMMANDS.get(stat.S_IFMT(item.mode))
        if command is None:
            raise sctx.fail(errno.EOPNOTSUPP)
        path = self.names.gen_unique_name(ino, item.generation)
        if command == "symlink":
            sctx.send_cmd(command, path=path, ino=ino, path_link=self.read_symlink(ino))
        elif command in ("mkfile", "mkdir"):
            sctx.send_cmd(command, path=path, ino=ino)
        else:
            rdev = new_encode_dev(item.rdev)
            sctx.send_cmd(command, path=path, ino=ino, rdev=rdev, mode=item.mode)

    def read_symlink(self, ino: int) -> bytes:
        """Return the target of a symbolic link."""
        sctx, path = self.sctx, self.sctx.search_path()
        if not search_slot(sctx.root, (ino, lib.BTRFS_EXTENT_DATA_KEY, 0), path):
            raise sctx.fail(errno.EIO)
        return self.extents.reader.symlink_target(path)

    def did_create_dir(self, ino: int) -> bool:
        """Whether a directory was created out of its turn, as the parent of a lower inode."""
        current().count("did_create_dir")
        sctx = self.sctx
        if "send-dir-created-cache" in sctx:
            current().count("btrfs_lru_cache_lookup")
            if self.dir_created_cache.lookup(ino) is not None:
                return True
        path = sctx.search_path()
        search_slot(sctx.root, (ino, lib.BTRFS_DIR_INDEX_KEY, 0), path)
        while path.slots[0] < nritems(path.leaf) or next_leaf(sctx.root, path):
            if key_at(path.leaf, path.slots[0])[:2] != (ino, lib.BTRFS_DIR_INDEX_KEY):
                return False
            entry = sctx.dir_entries(path, sctx.root)[0]
            is_subvolume = entry.location.type == lib.BTRFS_ROOT_ITEM_KEY
            if not is_subvolume and entry.location.objectid < sctx.send_progress:
                self.cache_dir_created(ino)
                return True
            path.slots[0] += 1
        return False

    def cache_dir_created(self, ino: int) -> None:
        """Remember that a directory was created."""
        if "send-dir-created-cache" in self.sctx and (ino, 0) not in self.dir_created_cache:
            current().count("btrfs_lru_cache_store")
            self.dir_created_cache.store(ino, 0, True, _DIR_CREATED_CACHE_SIZE)

    # ---------------------------------------------------------------------------- times -----

    def cache_dir_utimes(self, ino: int, gen: int) -> None:
        """Put UTIMES of a directory off, where the kernel does that (since v6.3)."""
        if "send-utimes-cache" not in self.sctx:
            self.send_utimes(ino, gen)
            return
        current().count("cache_dir_utimes")
        current().count("btrfs_lru_cache_lookup")
        if self.dir_utimes_cache.lookup(ino, gen) is None:
            current().count("btrfs_lru_cache_store")
            self.dir_utimes_cache.store(ino, gen, True)

    def send_utimes(self, ino: int, gen: int) -> None:
        """Send the times of an inode."""
        current().count("send_utimes")
        sctx = self.sctx
        if (ino, gen) == (sctx.cur_ino, sctx.cur_inode_gen):
            path = self.names.get_cur_inode_path()
        else:
            path = self.names.get_cur_path(ino, gen)
        item = sctx.inode_item(sctx.root, ino)
        if item is None:
            raise sctx.fail(errno.ENOENT)
        names = ["atime", "mtime", "ctime"] + ["otime"] * (sctx.request.proto >= 2)
        times = {name: getattr(item, name) for name in names}
        sctx.send_cmd("utimes", path=path, **{name: _signed(*t) for name, t in times.items()})

    # ---------------------------------------------------------------------------- names -----

    def changed_ref(self) -> None:
        """Record every name of an INODE_REF or INODE_EXTREF item."""
        sctx = self.sctx
        if sctx.cur_ino == _TOP:
            return
        if sctx.key.type == lib.BTRFS_INODE_REF_KEY:
            for ref in sctx.decode(sctx.path, sctx.root, inode_refs):
                self.record_new_ref(sctx.key.offset, ref.name)
        else:
            for ref in sctx.decode(sctx.path, sctx.root, inode_extrefs):
                self.record_new_ref(ref.parent_objectid, ref.name)

    def record_new_ref(self, parent: int, name: bytes) -> None:
        """Record a name with the path that its directory has now."""
        gen = self.names.get_inode_gen(self.sctx.root, parent)
        directory = self.names.get_cur_path(parent, gen)
        self.sctx.new_refs.append(RecordedRef(parent, gen, self.names.join(directory, name)))

    def process_recorded_refs(self) -> None:
        """Make the recorded names: a rename from the orphan name, then links."""
        current().count("process_recorded_refs")
        sctx, refs = self.sctx, self.sctx.new_refs
        if sctx.cur_ino <= _TOP:
            raise sctx.fail(errno.EINVAL)
        valid_path = self.names.gen_unique_name(sctx.cur_ino, sctx.cur_inode_gen)
        is_orphan = True
        # a first pass would move away what has the name in the parent snapshot
        for ref in refs:
            state = self.names.get_cur_inode_state(ref.dir, ref.dir_gen)
            if state != InodeState.WILL_CREATE:
                current().count("will_overwrite_ref")
        for index, ref in enumerate(refs):
            self.create_parent_if_needed(ref, refs[:index])
            if is_orphan or stat.S_ISDIR(sctx.cur_inode.mode):
                sctx.send_cmd("rename", path=valid_path, path_to=ref.full_path)
                valid_path = ref.full_path
                # rename_current_inode()
                if "send-cur-inode-path" in sctx:
                    sctx.cur_inode_path = ref.full_path
                is_orphan = False
            else:
                sctx.send_cmd("link", path=ref.full_path, path_link=valid_path)
        self.update_check_dirs()
        refs.clear()

    def create_parent_if_needed(self, ref: RecordedRef, earlier: list[RecordedRef]) -> None:
        """Create a parent directory with a higher number before its turn."""
        if self.names.get_cur_inode_state(ref.dir, ref.dir_gen) != InodeState.WILL_CREATE:
            return
        if any(other.dir == ref.dir for other in earlier) or self.did_create_dir(ref.dir):
            return
        self.send_create_inode(ref.dir)
        self.cache_dir_created(ref.dir)

    def update_check_dirs(self) -> None:
        """Send the times of the directories in which the inode got its names."""
        sctx, seen = self.sctx, set()
        for ref in sctx.new_refs:
            # commit 1fabe43b4e1a "btrfs: send: fix duplicated rmdir operations when using extrefs"
            # (in 6.18) visits each directory once
            if ref.dir in seen and "send-check-dirs-unique" in sctx:
                continue
            seen.add(ref.dir)
            # a directory with a higher number has its own turn
            if ref.dir > sctx.cur_ino:
                continue
            if self.names.get_cur_inode_state(ref.dir, ref.dir_gen) == InodeState.DID_CREATE:
                self.cache_dir_utimes(ref.dir, ref.dir_gen)

    # --------------------------------------------------------------------------- xattrs -----

    def changed_xattr(self) -> None:
        """Send the extended attributes of an item."""
        for entry in self.sctx.dir_entries(self.sctx.path, self.sctx.root):
            # sent last, because a chown would drop it; the kernel compares by strncmp()
            if _CAPS.startswith(entry.name):
                continue
            value = entry.data
            # an empty acl is stored as nothing, which receivers refuse
            if not value and any(acl.startswith(entry.name) for acl in _ACLS):
                value = _EMPTY_ACL
            self.send_set_xattr(entry.name, value)

    def send_capabilities(self) -> None:
        """Send security.capability, if the inode has it."""
        current().count("btrfs_lookup_xattr")
        key = Key(self.sctx.cur_ino, lib.BTRFS_XATTR_ITEM_KEY, name_hash(_CAPS))
        entry = self.sctx.lookup_name(key, _CAPS)
        if entry is not None:
            self.send_set_xattr(_CAPS, entry.data)

    def send_set_xattr(self, name: bytes, value: bytes) -> None:
        """Send SET_XATTR."""
        path = self.names.get_cur_inode_path()
        self.sctx.send_cmd("set_xattr", path=path, xattr_name=name, xattr_data=value)


def _signed(seconds: int, nanoseconds: int) -> tuple[int, int]:
    return seconds - (seconds >> 63 << 64), nanoseconds
