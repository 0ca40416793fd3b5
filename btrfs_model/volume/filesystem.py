# SPDX-License-Identifier: GPL-2.0-only
"""A filesystem in an image: its trees and its subvolumes.

Everything hangs on the root tree::

    superblock -> root tree -> (2 ROOT_ITEM 0)     extent tree
                               (5 ROOT_ITEM 0)     top-level subvolume
                               (5 ROOT_REF 256)    "256 is entry `name` of directory d of 5"
                               (256 ROOT_ITEM 0)   subvolume 256
                               (256 ROOT_BACKREF 5)
                               ...
               -> chunk tree
               -> log root tree -> (TREE_LOG ROOT_ITEM 256)  log of subvolume 256 (after a crash)
"""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from functools import cached_property, wraps
from html import escape
from typing import TYPE_CHECKING, Any, ClassVar, Concatenate, ParamSpec, Self, TypeVar, cast

from btrfs_model.base.arguments import checked
from btrfs_model.base.codes import Code
from btrfs_model.base.counters import uncounted
from btrfs_model.base.errors import (
    BtrfsModelError,
    CorruptImageError,
    Fault,
    NoSuchFileError,
    NotCommittedError,
    SubvolumeNotFoundError,
)
from btrfs_model.base.nearest import did_you_mean
from btrfs_model.base.tables import html_table, plural
from btrfs_model.native.lease import exclusive
from btrfs_model.ondisk.items import root_ref
from btrfs_model.ondisk.keys import MAX_KEY, ItemType, ObjectId
from btrfs_model.volume import tables
from btrfs_model.volume.checksums import DataChecksums
from btrfs_model.volume.device.devices import Paths
from btrfs_model.volume.file import FileObject
from btrfs_model.volume.forest import Forest
from btrfs_model.volume.image import Image
from btrfs_model.volume.roots import Root, is_subvolume_id
from btrfs_model.volume.subvolume import Subvolume, SubvolumeName, join, split_path
from btrfs_model.volume.tree import Tree

if TYPE_CHECKING:
    import pandas as pd

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")

_MAX = MAX_KEY.offset
_KEPT = 16  # forests
_TOP = int(ObjectId.FS_TREE)


class Filesystem:
    """What an image holds: trees, subvolumes, and through them directories and files.

    Threads may share a filesystem: one call is carried out at a time, and others wait. Calls on
    different filesystems run side by side. What a call hands out to be iterated over is read step
    by step. A callback of a call (``to.write`` of a send) must not wait for another thread that
    uses the same filesystem.

    One that was opened pickles, and copies, as the path of its file, which is then opened again.

    Parameters
    ----------
    image : Image
        The store of blocks.

    Attributes
    ----------
    image : Image
        The store of blocks.
    """

    # what users call; the rest is for the package
    _offered: ClassVar = frozenset(
        {"checksums", "close", "devices", "image", "listing", "open", "path", "qgroups",
         "file", "read_file", "stripes", "subvolume", "subvolume_ids", "subvolumes", "tree"}
    )  # fmt: skip

    _file_kind: ClassVar = FileObject

    @checked
    def __init__(self, image: Image) -> None:
        self.image = image

    def __dir__(self) -> list[str]:
        return sorted(self._offered)

    @classmethod
    @checked
    def open(cls, path: Paths, *, mounted: bool = False, degraded: bool = False) -> Self:
        """Open an image file, or those of several devices, read-only.

        Parameters
        ----------
        path : str, os.PathLike or sequence of them
            File or block device; of a filesystem of several devices all of them, or the folder
            that they are in.
        mounted : bool
            Read a block device also while it is in use; see
            :meth:`Image.open <btrfs_model.volume.image.Image.open>`, for files that change as well.
        degraded : bool
            Do without devices that are missing where all profiles allow, as ``mount -o degraded``.

        Raises
        ------
        MissingDeviceError
            When a device is missing, by devid, uuid and the chunks on it.
        BtrfsModelError
            For devices of different filesystems, or one that is named twice.
        CorruptImageError
            When the superblock, the chunk tree or the root tree cannot be read.
        UnsupportedError
            For a filesystem that the model does not handle.
        OSError
            When the file cannot be read; EBUSY for a block device that is in use.
        """
        return cls(Image.open(path, mounted=mounted, degraded=degraded))

    def close(self) -> None:
        """Give the image back; neither it nor anything read from it can be used any more.

        A call that runs in another thread ends first. Whatever is called afterwards raises
        ValueError; to close twice is no error.
        """
        self.image.close()
        self.forget()

    def forget(self) -> None:
        """Forget what was read."""
        for name, member in vars(Filesystem).items():
            if isinstance(member, cached_property):
                self.__dict__.pop(name, None)

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.image,)

    def __enter__(self) -> Self:
        self.image.lease.check_open()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.path!r}, {self._state()})"

    def _repr_html_(self) -> str:
        rows: list[tuple[object, ...]] = []
        with uncounted(), suppress(BtrfsModelError, OSError, ValueError):
            len(self.image.view)  # ValueError when it is closed
            rows = [self._subvolume_by_id(number).shown for number in self.subvolume_ids]
        headings = ["id", "name", "generation", "read-only"]
        return f"<p>{escape(repr(self))}</p>{html_table('', headings, rows, len(rows))}"

    def _state(self) -> str:
        """Say in a few words what it is; it never fails, and is no work that counts."""
        try:
            len(self.image.view)
        except ValueError:
            return "closed"
        try:
            with uncounted():
                return plural(len(self.subvolume_ids), "subvolume")
        except (BtrfsModelError, OSError):
            return "damaged"

    @property
    def path(self) -> str:
        """Name of the image."""
        return self.image.path

    # ------------------------------------------------------------------------------- trees --

    @cached_property
    def root_tree(self) -> Tree:
        """The tree of root items."""
        return Tree.pointed_at(self.image, ObjectId.ROOT_TREE)

    @cached_property
    def chunk_tree(self) -> Tree:
        """The tree of chunks and devices."""
        return Tree.pointed_at(self.image, ObjectId.CHUNK_TREE)

    @cached_property
    def root_items(self) -> list[Root]:
        """Every root item of the root tree, in key order, those of deleted subvolumes included."""
        return [
            Root.of(item, self.path, ObjectId.ROOT_TREE)
            for item in self.root_tree.items()
            if item.key.type == ItemType.ROOT_ITEM
        ]

    @cached_property
    def roots(self) -> dict[int, Root]:
        """The newest root item of each id that is alive, by id.

        Trees of a relocation under way all have the id TREE_RELOC; the last one stands here.
        """
        return {root.id: root for root in self.root_items if not root.is_dead}

    @cached_property
    def trees(self) -> dict[int, Tree]:
        """All trees by id, in the order of ids: those of :attr:`roots`, the root and chunk tree.

        The tree of log roots is among them, as TREE_LOG, when there is one.
        """
        trees = {objectid: root.tree(self.image) for objectid, root in self.roots.items()}
        trees[ObjectId.ROOT_TREE] = self.root_tree
        trees[ObjectId.CHUNK_TREE] = self.chunk_tree
        if self.log_root_tree is not None:
            trees[ObjectId.TREE_LOG] = self.log_root_tree
        return {int(objectid): tree for objectid, tree in sorted(trees.items())}

    @cached_property
    def _forests(self) -> dict[frozenset[int], Forest]:
        """The forests that were asked for last, by the subvolumes that are open in them."""
        return {}

    def forest(self, opened: Iterable[int] = ()) -> Forest:
        """Return all trees for a backref walk; `opened`: subvolumes that were opened."""
        open_now, kept = frozenset(opened), self._forests
        if open_now not in kept:
            if len(kept) >= _KEPT:
                kept.clear()
            kept[open_now] = Forest(self.image, self._trees_of_forests, open_now)
        return kept[open_now]

    @cached_property
    def _trees_of_forests(self) -> dict[int, Tree]:
        """The trees of each of :attr:`_forests`."""
        trees = {root.id: root.tree(self.image) for root in self.root_items}
        trees[int(ObjectId.ROOT_TREE)] = self.root_tree
        return trees

    @exclusive
    def tree(self, objectid: int) -> Tree:
        """Return the tree of an id.

        Raises
        ------
        SubvolumeNotFoundError
            When there is none.
        """
        if (tree := self.trees.get(objectid)) is None:
            why = f"there is no tree {_signed(objectid)}"
            raise self.missing(SubvolumeNotFoundError, why, objectid)
        return tree

    @cached_property
    def log_root_tree(self) -> Tree | None:
        """The tree of log roots, or None where nothing was fsynced since the last commit."""
        has_log = self.image.superblock.log_root
        return Tree.pointed_at(self.image, ObjectId.TREE_LOG) if has_log else None

    @cached_property
    def log_trees(self) -> dict[int, Tree]:
        """The log trees by the id of their subvolume."""
        if self.log_root_tree is None:
            return {}
        first, last = ((ObjectId.TREE_LOG, ItemType.ROOT_ITEM, offset) for offset in (0, _MAX))
        return {
            item.key.offset: Root.of(item, self.path, ObjectId.TREE_LOG).tree(
                self.image, ObjectId.TREE_LOG
            )
            for item in self.log_root_tree.items(first, last)
        }

    @cached_property
    def checksums(self) -> DataChecksums:
        """The checksums of data."""
        return DataChecksums(self.image, self.trees.get(ObjectId.CSUM_TREE))

    # -------------------------------------------------------------------------- subvolumes --

    @cached_property
    def _names(self) -> dict[int, SubvolumeName]:
        """Where each subvolume has its name, by its id (ROOT_BACKREF)."""
        names = {}
        for item in self.root_tree.items():
            if item.key.type != ItemType.ROOT_BACKREF:
                continue
            ref = item.decode(root_ref, self.path, ObjectId.ROOT_TREE)
            names[item.key.objectid] = SubvolumeName(item.key.offset, ref.dirid, ref.name)
        return names

    @cached_property
    def subvolume_ids(self) -> list[int]:
        """Ids of the subvolumes that are not deleted, ascending."""
        return [objectid for objectid in self.roots if is_subvolume_id(objectid)]

    @checked
    @exclusive
    def subvolume(self, which: str | bytes | int | Subvolume) -> Subvolume:
        """Find a subvolume.

        Parameters
        ----------
        which : str, bytes, int or Subvolume
            Path from the top of the filesystem (``snap1``, ``dir/snap2``; the empty path is the
            top itself) or id. A string of digits that is no path is an id.

        Raises
        ------
        SubvolumeNotFoundError
            When there is no such subvolume, or it is deleted.
        NotCommittedError
            When there is one, but not in the last commit.
        """
        if isinstance(which, Subvolume):
            return which
        if isinstance(which, int):
            return self._subvolume_by_id(which)
        path = which if isinstance(which, bytes) else which.encode("utf-8", "surrogateescape")
        try:
            return self._subvolume_by_path(path)
        except SubvolumeNotFoundError:
            if path.isdigit() and int(path) in self.roots:
                return self._subvolume_by_id(int(path))
            raise

    def _subvolume_by_id(self, objectid: int) -> Subvolume:
        root = self.roots.get(objectid)
        if root is None or not is_subvolume_id(objectid):
            why = f"there is no subvolume {_signed(objectid)}"
            raise self.missing(SubvolumeNotFoundError, why, objectid)
        return Subvolume(self, root, self._names.get(objectid))

    def _subvolume_by_path(self, path: bytes) -> Subvolume:
        def missing(why: str) -> FileNotFoundError:
            shown = path.decode("utf-8", "backslashreplace")
            names = (one.name.decode("utf-8", "backslashreplace") for one in self._names.values())
            nearest = did_you_mean(shown, filter(str.isprintable, names))
            return self.missing(SubvolumeNotFoundError, f"{why} {shown!r}{nearest}", path)

        at, ino = self._walk(path, lambda: missing("there is no subvolume"))
        if ino != at.root_dir:
            raise missing("this is not a subvolume:")
        return at

    def _walk(self, path: bytes, missing: Callable[[], FileNotFoundError]) -> tuple[Subvolume, int]:
        """Go a path from the top through subvolumes; `missing`: what is raised where it ends."""
        at = self._subvolume_by_id(_TOP)
        ino = at.root_dir
        for name in split_path(path):
            location = at.tree.lookup_path((ino, ItemType.INODE_ITEM, 0), name)
            if location is None:
                raise missing()
            ino, kind, _ = location
            if kind == ItemType.ROOT_ITEM:
                # a snapshot has the entries of the subvolumes in its source, but not these
                within = self._names.get(ino)
                if within is None or within.parent != at.id:
                    raise missing()
                at = self._subvolume_by_id(ino)
                ino = at.root_dir
        return at, ino

    @exclusive
    def locate(self, path: str | bytes) -> tuple[Subvolume, int]:
        """Return subvolume and inode number of a path from the top of the filesystem.

        Raises
        ------
        NoSuchFileError
            When it leads nowhere.
        NotCommittedError
            When it leads to what is not in the last commit.
        """
        raw = path if isinstance(path, bytes) else path.encode("utf-8", "surrogateescape")

        def missing() -> FileNotFoundError:
            shown = raw.decode("utf-8", "backslashreplace")
            return self.missing(NoSuchFileError, f"there is no file {shown!r}", _TOP, raw)

        return self._walk(raw, missing)

    @checked
    def file(self, path: str | bytes) -> FileObject:
        """Return what a path leads to as an object, with ``read()``, ``stat()`` and more.

        Parameters
        ----------
        path : str or bytes
            From the top of the filesystem, through subvolumes; it is looked up when it is used.
        """
        return self._file_kind(self, path if isinstance(path, bytes) else os.fsencode(path))

    @exclusive
    def subvolume_path(self, objectid: int) -> str:
        """Return the path of a subvolume from the top of the filesystem; the top's is empty.

        Raises
        ------
        SubvolumeNotFoundError
            When there is no such subvolume.
        CorruptImageError
            When subvolumes contain each other, or a directory on the way has no name.
        """
        parts: list[bytes] = []
        seen = set()
        while objectid != _TOP:
            subvolume = self._subvolume_by_id(objectid)
            name = subvolume.entry
            if name is None or objectid in seen:
                raise CorruptImageError(
                    self.path,
                    Fault(Code.LOOP if name else Code.NOT_FOUND, ObjectId.ROOT_TREE,
                          found=objectid, wanted=ItemType.ROOT_BACKREF),
                )  # fmt: skip
            seen.add(objectid)
            parent = self._subvolume_by_id(name.parent)
            parts.append(join(parent.path_of(name.dirid), name.name))
            objectid = name.parent
        return b"/".join(reversed(parts)).decode("utf-8", "surrogateescape")

    @exclusive
    def subvolumes(self) -> pd.DataFrame:
        """Return all subvolumes that are not deleted.

        Returns
        -------
        pandas.DataFrame
            A row per subvolume, by id: ``id``, ``path`` (from the top), ``parent`` (id of the
            subvolume that contains it, 0 for the top), ``uuid``, ``parent_uuid``,
            ``received_uuid`` (hexadecimal, empty for none), ``generation``, ``ctransid``,
            ``otransid``, ``stransid``, ``rtransid``, ``ctime``, ``otime``, ``stime``, ``rtime``
            (UTC, to the nanosecond, or to a coarser unit in a column with a time before 1677 or
            after 2262; NaT for none), ``read_only``, ``refs``.
        """
        found = [self.roots[number] for number in self.subvolume_ids]
        parents = {number: name.parent for number, name in self._names.items()}
        return tables.subvolumes(found, parents, self.subvolume_path)

    @exclusive
    def devices(self) -> pd.DataFrame:
        """Return the devices.

        Returns
        -------
        pandas.DataFrame
            A row for each, by devid, those that are missing too: ``devid``, ``uuid``, ``path``
            (empty when it is missing), ``size``, ``allocated`` (by chunks), ``unallocated``
            (bytes), ``missing``; then for each kind of chunk, such as ``DATA|RAID1``, the bytes of
            the device that are allocated to it.
        """
        return tables.devices(self.image, self.chunk_tree)

    @exclusive
    def stripes(self) -> pd.DataFrame:
        """Return where chunks lie.

        Returns
        -------
        pandas.DataFrame
            A row for each stripe of each chunk, by address: ``chunk`` (its logical address),
            ``length``, ``type`` (such as ``METADATA|RAID5``), ``stripe`` (its number), ``devid``,
            ``offset`` (byte of the device), ``stripe_length`` (bytes there), ``missing``.
        """
        return tables.stripes(self.image)

    @exclusive
    def qgroups(self) -> pd.DataFrame:
        """Return the quota groups, and beside what a kernel counted what there is.

        Returns
        -------
        pandas.DataFrame
            A row per group, by level and id: ``qgroup`` (level/id), ``path`` (of its subvolume,
            empty for none); bytes ``rfer`` and ``excl`` as the quota tree has them, ``reached``
            and ``alone`` as a rescan would count them; ``max_rfer``, ``max_excl`` (NA for no
            limit), ``groups`` (those that it is in).
        """
        alive = set(self.subvolume_ids)
        return tables.qgroups(self.trees, self.image, self.forest(), alive, self.subvolume_path)

    def missing(
        self,
        kind: type[FileNotFoundError],
        why: str,
        subvolume: bytes | int,
        file: bytes | int | None = None,
    ) -> FileNotFoundError:
        """Return the error for what a reader did not find.

        Parameters
        ----------
        kind : type
            Of the error, where there is no such thing at all.
        why : str
            What is to be said then.
        subvolume : bytes or int
            Path or id of the subvolume.
        file : bytes or int, optional
            Path or inode number of the file in it.
        """
        place = self.path if file is None else f"{self.path}: subvolume {subvolume!r}"
        if not self._has_uncommitted(subvolume, file):
            return kind(f"{place}: {why}")
        name: object = subvolume if file is None else file
        if isinstance(name, bytes):
            name = name.decode("utf-8", "backslashreplace")
        thing = "subvolume" if file is None else "inode" if isinstance(file, int) else "file"
        return NotCommittedError(f"{place}: {thing} {name!r} is not committed yet; call sync()")

    def _has_uncommitted(self, subvolume: bytes | int, file: bytes | int | None) -> bool:
        """Whether the running transaction has a subvolume or file; here there is none."""
        return False

    # ------------------------------------------------------------------------------- files --

    @exclusive
    def read_file(
        self,
        subvolume: str | bytes | int | Subvolume,
        file: str | bytes | int,
        offset: int = 0,
        length: int | None = None,
    ) -> bytes:
        """Read a file; see :meth:`Subvolume.read_file`."""
        return self.subvolume(subvolume).read_file(file, offset, length)

    @exclusive
    def listing(
        self, subvolume: str | bytes | int | Subvolume, *, content: bool = True
    ) -> pd.DataFrame:
        """List every path of a subvolume; see :func:`btrfs_model.volume.listing.listing`."""
        from btrfs_model.volume.listing import listing

        return listing(self.subvolume(subvolume), content=content)


def _signed(objectid: int) -> int:
    """Negative ids as such, as errors name trees."""
    return objectid - 2**64 if objectid >> 63 else objectid


@contextmanager
def reopened(fs: Filesystem) -> Iterator[Filesystem]:
    """Give a filesystem as it is, or where it was closed meanwhile its file, opened once more.

    Raises ValueError: for one in memory that was closed.
    """
    opened = fs.image.opened
    try:
        fs.image.lease.check_open()
    except ValueError:
        if opened is None:
            raise
    else:
        yield fs
        return
    paths, how = opened
    with Filesystem.open(paths, **how) as again:
        yield again


def opening(
    call: Callable[Concatenate[T, P], R],
) -> Callable[Concatenate[T | Paths, P], R]:
    """Let a question take files in place of a filesystem, which are open while it is answered."""
    signature = inspect.signature(call)
    first, *others = signature.parameters.values()

    @wraps(call)
    def answer(*args: Any, **kwargs: Any) -> R:
        fs, *rest = args or (kwargs.pop(first.name),)
        # who asks for many small answers has it open
        if isinstance(fs, Filesystem) or not isinstance(fs, str | os.PathLike | list | tuple):
            return call(cast(T, fs), *rest, **kwargs)
        with Filesystem.open(fs) as opened:
            return call(cast(T, opened), *rest, **kwargs)

    wider = first.replace(annotation=f"{first.annotation} | Paths")
    answer.__signature__ = signature.replace(parameters=[wider, *others])  # type: ignore[attr-defined]
    return answer
