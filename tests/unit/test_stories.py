# SPDX-License-Identifier: GPL-2.0-only
"""What the sentences of the site's stories say is so, on each kernel and with each size of blocks.

`says` gives a sentence its check, by its text; one that only tells what is done is in `DONE`. A
story with another sentence fails.
"""

import re
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass
from functools import cache, cached_property

import pytest
from gallery import SIZE
from stepper import SIZES, TOLD, Moment, Story, left, moments, opened, written_in

import btrfs_model as bm
from btrfs_model.experiments.crashes.record import Recording, Watching, record_script
from btrfs_model.experiments.crashes.seen import names_of, path_of
from btrfs_model.ondisk.constants import BTRFS_BLOCK_GROUP_DATA
from btrfs_model.ondisk.items import InlineExtent, file_extent
from btrfs_model.ondisk.keys import ItemType, ObjectId
from btrfs_model.ondisk.superblock import SUPER_OFFSETS
from btrfs_model.scripts.run import watched_script
from btrfs_model.volume.filesystem import Filesystem
from btrfs_model.volume.subvolume import Subvolume
from btrfs_model.volume.tree import Tree

STORIES = {story.name: story for story in TOLD}
MIB = 1 << 20


@dataclass
class Told:
    """A step of a story that ran: the filesystem now, and how it was before."""

    story: Story
    kernel: str
    nodesize: int
    all: list[Moment]
    at: int

    @property
    def moment(self) -> Moment:
        return self.all[self.at]

    @property
    def before(self) -> "Told":
        return Told(self.story, self.kernel, self.nodesize, self.all, self.at - 1)

    @cached_property
    def fs(self) -> Filesystem:
        return opened(self.moment.device)

    @property
    def top(self) -> Subvolume:
        return self.fs.subvolume("")

    @property
    def is_unwritten(self) -> bool:
        """Whether nothing went to the device in this step."""
        before = self.before.moment.device.copy()
        changes = [(at, len(run)) for at, run in before.take_changes(self.moment.device)]
        return not [*written_in(self.fs, changes)]

    @property
    def files(self) -> dict[str, tuple[bytes, int]]:
        """What processes see: path, content and size."""
        state = self.moment.seen
        return {path_of(state, ref): (inode.data, inode.size)
                for ref, inode in state.items() if inode.is_file}  # fmt: skip

    @property
    def names(self) -> set[str]:
        """Paths of all that processes see, but of the top."""
        state = self.moment.seen
        return {path_of(state, ref) for _, _, ref in names_of(state)}

    @property
    def changed(self) -> set[str]:
        """Files of which another content is seen than before."""
        earlier = self.before.files
        return {path for path, what in self.files.items() if earlier.get(path) != what}

    def places(self, path: str) -> list[int]:
        """Where the extents of a file lie."""
        return [one.disk_bytenr for one in self.top.extents(path)]

    def bytes_at(self, logical: int, size: int) -> bytes:
        """What is on the device at an address."""
        place, _ = self.fs.image.map(logical)
        return bytes(self.moment.device.buffer[place : place + size])

    def has_extent(self, logical: int) -> bool:
        """Whether the extent tree has an extent of data."""
        tree = self.fs.tree(ObjectId.EXTENT_TREE)
        return any(item.key[:2] == (logical, ItemType.EXTENT_ITEM) for item in tree.items())

    def is_free(self, logical: int, size: int) -> bool:
        """Whether the free space tree has all of a range."""
        return any(
            item.key[0] <= logical and logical + size <= item.key[0] + item.key[2]
            for item in self.fs.tree(ObjectId.FREE_SPACE_TREE).items()
            if item.key[1] == ItemType.FREE_SPACE_EXTENT
        )

    @property
    def data_chunks(self) -> set[int]:
        return {chunk.logical for chunk in self.fs.image.chunks
                if chunk.type & BTRFS_BLOCK_GROUP_DATA}  # fmt: skip

    @property
    def logged(self) -> list[tuple[int, int]]:
        """Inode and kind of all items in the log of the top."""
        return [(item.key[0], item.key[1]) for item in self.fs.log_trees[5].items()]


def blocks(tree: Tree, level: int | None = None) -> set[int]:
    """Where the blocks of a tree are, of all levels or one."""
    return {block.logical for block in tree.blocks() if level in (None, block.level)}


Check = Callable[[Told], object]
SAYS: dict[tuple[str, str], Check] = {}
DONE = {
    ("write", "A small file."), ("write", "A larger one."), ("write", "The end."),
    ("crash", "The power fails."), ("replay", "The power fails."),
    ("delete", "Which one it gets is up to the allocator."),
}  # fmt: skip
"""Sentences that say what is done, or nothing of the disk."""


def says(story: str, *sentences: str) -> Callable[[Check], Check]:
    def keep(check: Check) -> Check:
        for sentence in sentences:
            assert (story, sentence) not in SAYS
            SAYS[story, sentence] = check
        return check

    return keep


def sentences(words: str) -> list[str]:
    return re.split(r"(?<=\.)\s+(?=[A-Z0-9])", words)


# ---------------------------------------------------------------------------------- write --


@says("write", "An empty filesystem: each tree is one leaf, and the superblock leads to them.")
def _(told: Told) -> None:
    fs = told.fs
    trees = [fs.root_tree, fs.chunk_tree, *fs.trees.values()]
    assert len(trees) >= 9 and all(tree.level == 0 for tree in trees)
    superblock = fs.image.superblock
    assert (superblock.root, superblock.chunk_root) == (fs.root_tree.bytenr, fs.chunk_tree.bytenr)
    assert told.names == set()


@says("write", "It is in memory alone: nothing goes to the disk.")
@says("write", "Its pages wait in memory as well.")
def _(told: Told) -> None:
    assert told.is_unwritten and len(told.changed) == 1


@says("write", "The commit: data first, then new tree blocks, at last the superblock that leads to "
      "them.")  # fmt: skip
def _(told: Told) -> None:
    log, number = recorded(told.story, told.kernel, told.nodesize).log, told.all.index(told.moment)
    (step,) = [at for at, what in enumerate(log.steps) if what.endswith("sync")]
    kinds = []
    for entry in log.entries[log.ends[step - 1] : log.ends[step]]:
        if entry.size and entry.start != SUPER_OFFSETS[1]:
            chunk = [one for one in told.fs.image.chunks for start in one.stripes
                     if start <= entry.start < start + one.stripe_length]  # fmt: skip
            data = chunk and chunk[0].type & BTRFS_BLOCK_GROUP_DATA
            kinds.append("data" if data else "block" if chunk else "superblock")
    assert number == 3
    assert [one for at, one in enumerate(kinds) if kinds[at - 1 : at] != [one]] == [
        "data", "block", "superblock"]  # fmt: skip


@says("write", "All is there already: a commit changes little, and Linux 7.2 makes none.")
def _(told: Told) -> None:
    assert told.files == told.before.files
    assert told.is_unwritten == (told.kernel == "v7.2")
    assert blocks(told.top.tree) == blocks(told.before.top.tree)


@cache
def recorded(story: Story, kernel: str, nodesize: int) -> Recording:
    """What the mount of a script writes, in order."""
    text = "\n".join(commands for _, commands in story.paragraphs)

    def run(watching: Watching) -> None:
        behaviour = bm.Behaviour.parse(kernel)
        text_of = text.replace("$NODESIZE", str(nodesize))
        with closing(watched_script(text_of, behaviour, SIZE, watching)):
            pass

    (recording,) = record_script(run)
    return recording


# ------------------------------------------------------------------------------ overwrite --


@says("overwrite", "A filesystem with one file of 128 KiB.")
def _(told: Told) -> None:
    assert {path: size for path, (_, size) in told.files.items()} == {"file": 128 << 10}


@says("overwrite", "4 KiB in the middle are written again, in memory.")
def _(told: Told) -> None:
    (new, _), (old, _) = told.files["file"], told.before.files["file"]
    assert [at for at in range(len(old)) if old[at] != new[at]] == [*range(64 << 10, 68 << 10)]
    assert told.is_unwritten


@says("overwrite", "The new 4 KiB go to another place.",
      "The old extent stays, and two items refer to its ends.")  # fmt: skip
def _(told: Told) -> None:
    (old,) = told.before.top.extents("file")
    first, new, last = told.top.extents("file")
    assert old.disk_bytenr == first.disk_bytenr == last.disk_bytenr
    assert told.has_extent(old.disk_bytenr)
    assert (first.offset, last.offset + last.length) == (0, old.disk_num_bytes)
    assert not old.disk_bytenr <= new.disk_bytenr < old.disk_bytenr + old.disk_num_bytes
    assert new.length == 4 << 10
    kept = told.bytes_at(old.disk_bytenr, old.disk_num_bytes)
    assert kept == told.before.bytes_at(old.disk_bytenr, old.disk_num_bytes)


@says("overwrite", "All of the file is written again.")
def _(told: Told) -> None:
    assert set(told.files["file"][0]) == {3} and told.is_unwritten


@says("overwrite", "Now nobody refers to the old extents, and their room is free.")
def _(told: Told) -> None:
    for one in told.before.top.extents("file"):
        assert one.disk_bytenr not in told.places("file")
        assert not told.has_extent(one.disk_bytenr)
        assert told.is_free(one.disk_bytenr, one.disk_num_bytes)


# ------------------------------------------------------------------------------- snapshots --


@says("snapshot", "A filesystem with forty small files.")
def _(told: Told) -> None:
    assert len(told.files) == 40
    assert all(size < 40 for _, size in told.files.values())


@says("snapshot", "A snapshot copies the root block, and shares all that is below it.",
      "Its name is an entry of the top: for that, a leaf or more of the top is copied as well.",
      "A second snapshot does the same once more.")  # fmt: skip
def _(told: Told) -> None:
    (name,) = {path.partition("/")[0] for path in told.names - told.before.names}
    old, new, top = (blocks(tree) for tree in (
        told.before.top.tree, told.fs.subvolume(name).tree, told.top.tree))  # fmt: skip
    assert len(new - old) == 1 and told.fs.subvolume(name).tree.bytenr in new - old
    assert len(old - new) == 1
    leaves = blocks(told.top.tree, 0) - blocks(told.before.top.tree, 0)
    assert leaves and top != old


@says("rewrite-after-snapshot", "Forty files, and a snapshot of them.")
def _(told: Told) -> None:
    assert len([path for path in told.files if "/" not in path]) == 40
    assert len(told.fs.subvolume_ids) == 2


@says("rewrite-after-snapshot", "One file is changed, in memory.")
def _(told: Told) -> None:
    assert told.changed == {"file20"} and told.is_unwritten


@says("rewrite-after-snapshot", "The leaf with the file is copied, and each node above it.",
      "The snapshot keeps the old ones.")  # fmt: skip
def _(told: Told) -> None:
    old, new = told.before.top.tree, told.top.tree
    for level in range(new.level + 1):
        assert len(blocks(new, level) - blocks(old, level)) == 1
    assert blocks(told.fs.subvolume("snap").tree) == blocks(told.before.fs.subvolume("snap").tree)
    assert blocks(told.fs.subvolume("snap").tree, 0) - blocks(new, 0)


@says("rewrite-after-snapshot", "The snapshot is deleted: its name is gone at once.")
def _(told: Told) -> None:
    assert not any(path.startswith("snap") for path in told.names)


# -------------------------------------------------------------------------------- deletion --


@says("delete", "Three files: an inline one, and two with extents.")
def _(told: Told) -> None:
    assert {*told.files} == {"inline", "first", "second"}
    inline = {path: isinstance(_extent(told, path), InlineExtent) for path in told.files}
    assert inline == {"inline": True, "first": False, "second": False}


def _extent(told: Told, path: str) -> object:
    ino = told.top.resolve(path)
    (item,) = told.top.tree.items((ino, ItemType.EXTENT_DATA, 0), (ino, ItemType.EXTENT_DATA, MIB))
    return file_extent(item.data)


@says("delete", "Two are deleted, in memory.")
def _(told: Told) -> None:
    assert {*told.files} == {"second"} and told.is_unwritten


@says("delete", "A crash brings them back.")
def _(told: Told) -> None:
    assert left(told.moment, told.kernel) == '"first", "inline" would be back.'


@says("delete", "The commit has their items no more.",
      "The bytes of the data still lie where they were, and may be used.")  # fmt: skip
def _(told: Told) -> None:
    inodes = {item.key[0] for item in told.top.tree.items()}
    assert not inodes & {told.before.top.resolve(path) for path in ("inline", "first")}
    (extent,) = told.before.top.extents("first")
    at, size = extent.disk_bytenr, extent.disk_num_bytes
    assert told.bytes_at(at, size) == told.before.bytes_at(at, size) != bytes(size)
    assert told.is_free(at, size)


@says("delete", "A new file gets a place of its own.")
def _(told: Told) -> None:
    assert told.places("third")[0] not in told.places("second") and told.changed == {"third"}


# ----------------------------------------------------------------------------------- fsync --


@says("fsync", "A directory with four files, all committed.")
def _(told: Told) -> None:
    assert {*told.files} == {f"dir/{name}" for name in "abcd"}
    assert len([*told.top.readdir(told.top.resolve("dir"))]) == 4


@says("fsync", "Two more files, in memory.")
def _(told: Told) -> None:
    assert told.changed == {"dir/new1", "dir/new2"} and told.is_unwritten


@says("fsync", "The fsync of the directory writes a log of what is new.",
      "Before Linux 5.17 it has two items for a name, DIR_ITEM and DIR_INDEX; since then it has "
      "the second alone.")  # fmt: skip
def _(told: Told) -> None:
    inodes = {ino for ino, kind in told.logged if kind == ItemType.INODE_ITEM}
    assert len(inodes) == 3  # the directory, and the two files
    assert blocks(told.top.tree) == blocks(told.before.top.tree)
    kinds = [kind for _, kind in told.logged]
    old = {"v5.16": True, "v5.17": False, "v7.2": False}[told.kernel]
    names = kinds.count(ItemType.DIR_INDEX)
    assert names >= 2 and kinds.count(ItemType.DIR_ITEM) == (names if old else 0)


@says("fsync", "One is deleted, and the directory is logged again.")
def _(told: Told) -> None:
    assert told.before.names - told.names == {"dir/a"}
    assert blocks(told.fs.log_trees[5]) != blocks(told.before.fs.log_trees[5])


@says("fsync", "A commit has all of it, and forgets the log.")
def _(told: Told) -> None:
    entries = {entry.name.decode() for entry in told.top.readdir(told.top.resolve("dir"))}
    assert entries == {"b", "c", "d", "new1", "new2"}
    assert told.fs.log_root_tree is None and told.fs.image.superblock.log_root == 0


# ----------------------------------------------------------------------------------- crash --


@says("crash", "One file, committed.")
@says("replay", "One file, committed.")
def _(told: Told) -> None:
    assert len(told.files) == 1 and len([*told.top.readdir(256)]) == 1


@says("crash", "It is written again, and there is a second file.", "Both are in memory alone.")
def _(told: Told) -> None:
    assert told.changed == {"file", "other"} and told.is_unwritten


@says("crash", "The next mount finds the last commit, whole: the first version, and no other file.")
def _(told: Told) -> None:
    assert told.files == {"file": (b"the first version\n", 18)}
    assert told.files == Told(told.story, told.kernel, told.nodesize, told.all, 0).files


@says("replay", "Two more files, in memory.")
def _(told: Told) -> None:
    assert told.changed == {"synced", "waiting"} and told.is_unwritten


@says("replay", "The fsync of one of them writes its inode, name and content to a log.")
def _(told: Told) -> None:
    assert len({ino for ino, _ in told.logged}) == 1
    assert [kind for _, kind in told.logged] == [
        ItemType.INODE_ITEM, ItemType.INODE_REF, ItemType.EXTENT_DATA]  # fmt: skip


@says("replay", "The superblock leads to the last commit, and to the log.")
def _(told: Told) -> None:
    before = told.before
    assert before.fs.image.superblock.log_root
    assert [entry.name for entry in before.top.readdir(256)] == [b"old"]


@says("replay", "The next mount replays the log, and commits: the log is gone, and the file is in "
      "the tree.")  # fmt: skip
def _(told: Told) -> None:
    assert told.fs.log_root_tree is None
    assert {entry.name for entry in told.top.readdir(256)} == {b"old", b"synced"}


# ------------------------------------------------------------------------------------ send --


@says("send", "A subvolume with a file, and a snapshot of it.")
def _(told: Told) -> None:
    assert {*told.files} == {"home/file", "monday/file"}


@says("send", "The file changes, and there is another snapshot.")
def _(told: Told) -> None:
    assert told.changed == {"home/file", "tuesday/file"}


@says("send", "A send of the second snapshot, with the first as its parent, compares their trees.",
      "It writes nothing to the disk.")  # fmt: skip
def _(told: Told) -> None:
    sent = bm.send(told.fs, "tuesday", "monday")
    assert sent.work["tree_advance"] > 0
    assert told.is_unwritten


@says("send", "A receive of the first snapshot makes a subvolume and writes the file as any "
      "process would.")  # fmt: skip
def _(told: Told) -> None:
    made = told.fs.subvolume("backup/monday")
    assert made.parent_uuid is None and made.received_uuid == told.fs.subvolume("monday").uuid
    assert told.files["backup/monday/file"] == told.files["monday/file"]
    assert not blocks(made.tree) & blocks(told.fs.subvolume("monday").tree)


@says("send", "A receive of the difference makes a snapshot of what was received, and changes it.")
def _(told: Told) -> None:
    made = told.fs.subvolume("backup/tuesday")
    assert made.parent_uuid == told.fs.subvolume("backup/monday").uuid
    assert told.files["backup/tuesday/file"] == told.files["tuesday/file"]
    assert told.files["backup/tuesday/file"] != told.files["backup/monday/file"]


# --------------------------------------------------------------------------------- balance --


@says("balance", "Eight files of 1 MiB.")
def _(told: Told) -> None:
    assert [size for _, size in told.files.values()] == [MIB] * 8


@says("balance", "Half of them are deleted: their chunk has holes, and stays.")
def _(told: Told) -> None:
    gone = told.before.names - told.names
    assert len(gone) == 4 == len(told.names)
    assert told.data_chunks == told.before.data_chunks
    holes = [told.before.places(path)[0] for path in gone]
    assert all(told.is_free(at, MIB) for at in holes)
    assert min(holes) < max(told.places(path)[0] for path in told.names)


@says("balance", "A balance of data writes what is in use to new chunks, and lets each old one go.",
      "Addresses of the files change; their contents do not.")  # fmt: skip
def _(told: Told) -> None:
    assert not told.data_chunks & told.before.data_chunks
    assert told.files == told.before.files
    for path in told.names:
        assert not {*told.places(path)} & {*told.before.places(path)}
        chunk = told.fs.image.chunk_at(told.places(path)[0])
        assert chunk.logical in told.data_chunks


@says("balance", "A balance of metadata moves tree blocks in the same way.")
def _(told: Told) -> None:
    chunks = [{chunk.logical for chunk in one.fs.image.chunks} for one in (told, told.before)]
    assert chunks[0] & chunks[1] == told.data_chunks
    assert told.files == told.before.files
    for number in told.fs.trees:
        assert not blocks(told.fs.tree(number)) & blocks(told.before.fs.tree(number))


# ---------------------------------------------------------------------------- out of space --


@says("out-of-space", "A small device.")
def _(told: Told) -> None:
    assert told.fs.image.superblock.total_bytes == 128 * MIB


@says("out-of-space", "A file gets room, most of what there is.")
def _(told: Told) -> None:
    allocated = sum(one.length for one in told.top.extents("large"))
    chunks = [one for one in told.fs.image.chunks if one.type & BTRFS_BLOCK_GROUP_DATA]
    assert allocated == 40 * MIB > sum(chunk.length for chunk in chunks) // 2


@says("out-of-space", "Another one does not fit: the write ends with ENOSPC, where a part of it is "
      "there.")  # fmt: skip
def _(told: Told) -> None:
    assert "No space left on device" in told.moment.output
    assert 0 < told.files["more"][1] < 16 * MIB


@says("out-of-space", "Deleting takes room as well, since tree blocks are copied.",
      "The global reserve is kept for that.")  # fmt: skip
def _(told: Told) -> None:
    assert {*told.files} == {"large"} and told.moment.output == ""
    assert not blocks(told.top.tree) & blocks(told.before.top.tree)
    text = "\n".join(commands for _, commands in told.story.paragraphs)
    variables = {"NODESIZE": str(told.nodesize)}
    asked = bm.script(f"{text}\nbtrfs filesystem df -b /mnt", behaviour=told.kernel, size=SIZE,
                      variables=variables)  # fmt: skip
    (kept,) = re.findall(rb"GlobalReserve, single: total=(\d+)", asked.output)
    assert int(kept) > 0
    asked.close()


@says("out-of-space", "Now there is room for it.")
def _(told: Told) -> None:
    assert told.files["fits"][1] == 2 * MIB and told.moment.output == ""


# ----------------------------------------------------------------------------- self-healing --


@says("self-healing", "Two small files.",
      "Metadata are there twice on the one device: the profile DUP.")  # fmt: skip
def _(told: Told) -> None:
    assert told.files == {name: (f"this is {name}\n".encode(), 12) for name in ("one", "two")}
    first, second = _copies(told)
    assert first == second
    assert {chunk.profile.name for chunk in told.fs.image.chunks if chunk.copies > 1} == {"DUP"}


@says("self-healing", "A byte in the first copy of the leaf rots.",
      "Its checksum tells, and the other copy is read.")  # fmt: skip
def _(told: Told) -> None:
    first, second = _copies(told)
    assert sum(one != other for one, other in zip(first, second, strict=True)) == 1
    assert second == _copies(told.before)[1]
    assert told.files == told.before.files


@says("self-healing", "A check of all copies finds it.")
def _(told: Told) -> None:
    assert "copy 0" in told.moment.output and "bad checksum" in told.moment.output


@says("self-healing", "The right bytes are those of the other copy.",
      "They are written over the rotted ones.")  # fmt: skip
def _(told: Told) -> None:
    first, second = _copies(told)
    assert first == second == _copies(told.before)[1] != _copies(told.before)[0]


def _copies(told: Told) -> list[bytes]:
    size = told.nodesize
    return [bytes(told.moment.device.buffer[at : at + size])
            for at in told.fs.image.copies(told.top.tree.bytenr)]  # fmt: skip


# --------------------------------------------------------------------------------- all of it --


NOTHING = "nothing would be lost."
CRASHES = {
    "write": [NOTHING, '"small" would be lost.', '"large", "small" would be lost.', NOTHING,
              NOTHING],
    "overwrite": [NOTHING, '"file" would be as before.'] * 2 + [NOTHING],
    "snapshot": [NOTHING] * 3,
    "rewrite-after-snapshot": [NOTHING, '"file20" would be as before.', NOTHING, NOTHING],
    "delete": [NOTHING, '"first", "inline" would be back.', NOTHING, NOTHING],
    "fsync": [NOTHING, '"dir/new1", "dir/new2" would be lost.', NOTHING, NOTHING, NOTHING],
    "crash": [NOTHING, '"other" would be lost; "file" would be as before.', NOTHING],
    "replay": [NOTHING, '"synced", "waiting" would be lost.', '"waiting" would be lost.', NOTHING],
    "send": [NOTHING] * 5,
    "balance": [NOTHING] * 4,
    "out-of-space": [NOTHING] * 5,
    "self-healing": [NOTHING] * 4,
}  # fmt: skip
"""What a page says that a crash after each step leaves, on each kernel and with each size."""


def variants() -> Iterator[tuple[str, str, int]]:
    for story in TOLD:
        for kernel in story.kernels:
            for nodesize in SIZES:
                yield story.name, kernel, nodesize


@pytest.mark.claim(
    "What the words of each story of the site say of the disk is so on each kernel and with each "
    "size of blocks that it has a slider for, and a crash after each step leaves what is said."
)
@pytest.mark.parametrize(("name", "kernel", "nodesize"), [*variants()])
def test_what_a_story_says(name: str, kernel: str, nodesize: int) -> None:
    story = STORIES[name]
    ran = list(moments(story, kernel, nodesize))
    for at, (words, _) in enumerate(story.paragraphs):
        for sentence in sentences(words):
            if (name, sentence) not in DONE:
                SAYS[name, sentence](Told(story, kernel, nodesize, ran, at))
    assert [left(moment, kernel) for moment in ran] == CRASHES[name]


def test_each_sentence_has_a_check() -> None:
    told = {
        (story.name, sentence)
        for story in TOLD for words, _ in story.paragraphs for sentence in sentences(words)
    }  # fmt: skip
    assert told == {*SAYS} | DONE
    assert not {*SAYS} & DONE
