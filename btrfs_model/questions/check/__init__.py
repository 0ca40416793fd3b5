# SPDX-License-Identifier: GPL-2.0-only
"""Checking an image as ``btrfs check`` does: structure, references, space, directories, checksums.

The passes, each in a module of its own:

    walk         every copy of every tree block; how blocks fit together
    items        every item by itself
    extents      the extent tree against what all blocks refer to
    space        chunks, device extents, block groups, free space, checksums
    copies       superblocks, data and parity on each device
    inodes       names, links, directories and file extents of each subvolume
    subvolumes   names of subvolumes, UUIDs
    quotas       what quota groups have, against what there is

A finding is a line; an image without fault has none. What an earlier pass could not read, a later
one does not judge.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from functools import partial

import numpy as np
import numpy.typing as npt

from btrfs_model.base.arguments import checked
from btrfs_model.base.errors import CorruptImageError
from btrfs_model.native.items import DATA_EXTENT, KnownLeaves, scan_leaves
from btrfs_model.ondisk.keys import ObjectId
from btrfs_model.questions.check.copies import check_data, check_superblocks
from btrfs_model.questions.check.extents import Table, check_extents, read_extents
from btrfs_model.questions.check.inodes import Rows, check_inodes
from btrfs_model.questions.check.items import check_items, screen
from btrfs_model.questions.check.report import Finding, Report
from btrfs_model.questions.check.space import check_checksums, check_space
from btrfs_model.questions.check.subvolumes import check_subvolumes
from btrfs_model.questions.check.walk import LEAVES_AT_ONCE, Forest, TreeRoot, walk_forest
from btrfs_model.volume.device.devices import Paths
from btrfs_model.volume.filesystem import Filesystem
from btrfs_model.volume.image import Image
from btrfs_model.volume.tree import Tree

_NEEDED = (ObjectId.EXTENT_TREE, ObjectId.DEV_TREE, ObjectId.FS_TREE)


@checked
def check(
    image: Image | Filesystem | Paths,
    *,
    verify_data: bool = False,
    limit: int = 20,
) -> list[Finding]:
    """Look for everything that is wrong with an image.

    Parameters
    ----------
    image : Image, Filesystem, str, os.PathLike or sequence of them
        What to check, or the files it is in.
    verify_data : bool
        Whether to read all data and compare them with their checksums.
    limit : int
        How many findings of each kind in each tree are listed; the others are counted.

    Returns
    -------
    list of Finding
        Empty for an image without fault.

    Raises
    ------
    CorruptImageError
        When nothing can be checked: without a superblock, chunk tree or root tree.
    UnsupportedError
        For a filesystem that the model does not handle.
    OSError
        When the file cannot be read.
    """
    if isinstance(image, Image):
        image = Filesystem(image)
    if isinstance(image, Filesystem):
        return _Check(image, limit).run(verify_data)
    with Filesystem.open(image) as fs:
        return _Check(fs, limit).run(verify_data)


class _Check:
    def __init__(self, fs: Filesystem, limit: int) -> None:
        self.fs = fs
        self.report = Report(limit)

    def run(self, verify_data: bool) -> list[Finding]:
        with self.fs.image.lease:
            return self._run(verify_data)

    def _run(self, verify_data: bool) -> list[Finding]:
        fs, report = self.fs, self.report
        check_superblocks(fs, report)
        forest = walk_forest(fs.image, self._roots(), report)
        data = self._check_items(forest)
        missing = [objectid for objectid in map(int, _NEEDED) if objectid not in fs.trees]
        for objectid in missing:
            report.add("there is no tree {id}", tree=int(ObjectId.ROOT_TREE), id=objectid)
        if missing or forest.broken:
            return report.result()
        extents = read_extents(fs.image, fs.tree(ObjectId.EXTENT_TREE))
        check_extents(fs.image, extents, forest, data, report)
        self._guard(lambda: check_space(fs, extents, report))
        self._guard(lambda: check_checksums(fs, extents, report))
        self._guard(lambda: self._check_subvolumes(forest))
        if ObjectId.QUOTA_TREE in fs.trees:
            self._guard(lambda: self._check_quotas(forest))
        if verify_data:
            self._guard(lambda: check_data(fs, extents, report))
        return report.result()

    def _check_subvolumes(self, forest: Forest) -> None:
        entries: dict[int, Rows] = {}
        logical = np.sort(forest.blocks["logical"][forest.blocks["level"] == 0])
        known: defaultdict[int, KnownLeaves] = defaultdict(lambda: KnownLeaves(logical))
        for objectid in self.fs.subvolume_ids:
            root_dir = self.fs.roots[objectid].item.root_dirid
            tree = self.fs.tree(objectid)
            entries[objectid] = check_inodes(self.fs, tree, root_dir, self.report, known[root_dir])
        # relocation keeps its data in a tree like a subvolume
        relocation = self.fs.trees.get(ObjectId.DATA_RELOC_TREE)
        if relocation is not None:
            root_dir = self.fs.roots[ObjectId.DATA_RELOC_TREE].item.root_dirid
            check_inodes(self.fs, relocation, root_dir, self.report)
        check_subvolumes(self.fs, entries, self.report)

    def _check_quotas(self, forest: Forest) -> None:
        # most images have none, and to import it takes as long as to check a small one
        from btrfs_model.questions.check.quotas import check_quotas

        check_quotas(self.fs, forest, self.report)

    def _roots(self) -> list[TreeRoot]:
        """All roots: those in the superblock, in root items, and of logs."""
        fs = self.fs
        roots = [_tree_root(fs.root_tree), _tree_root(fs.chunk_tree)]
        for root in fs.root_items:
            roots.append(_tree_root(root.tree(fs.image))._replace(progress=root.progress))
        if fs.log_root_tree is not None:
            roots.append(_tree_root(fs.log_root_tree, is_log=True))
            to_root = partial(_tree_root, is_log=True)
            self._guard(lambda: roots.extend(map(to_root, fs.log_trees.values())))
        return roots

    def _guard(self, step: Callable[[], None]) -> None:
        """Run a step; a block that it cannot read is a finding."""
        try:
            step()
        except CorruptImageError as error:
            self.report.add_fault("", error.fault)

    def _check_items(self, forest: Forest) -> Table:
        """Check the items of all leaves; return the file extents among them that lie on disk."""
        fs = self.fs
        parts = [np.empty(0, DATA_EXTENT)]
        for log in (False, True):
            leaves = forest.leaves(log=log)
            for at in range(0, len(leaves), LEAVES_AT_ONCE):
                rows = leaves[at : at + LEAVES_AT_ONCE]
                passed, extents = screen(fs.image, forest.blocks[rows], forest.tree[rows])
                if not log:
                    parts.append(extents)
                if not passed.all():
                    self._check_leaves(forest, rows[~passed])
        return [np.concatenate([part[name] for part in parts]) for name in DATA_EXTENT.names or ()]

    def _check_leaves(self, forest: Forest, rows: npt.NDArray[np.intp]) -> None:
        blocks = forest.blocks[rows]
        columns = scan_leaves(self.fs.image, blocks["logical"])
        of = np.repeat(forest.tree[rows], blocks["nritems"])
        check_items(self.fs.image, self.report, columns, of)


def _tree_root(tree: Tree, *, is_log: bool = False) -> TreeRoot:
    return TreeRoot(tree.objectid, tree.bytenr, tree.generation, tree.level, is_log)
