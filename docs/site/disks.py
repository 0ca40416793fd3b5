# SPDX-License-Identifier: GPL-2.0-only
"""The disks of the gallery, and what is asked about each.

A function reads its answers from the disk. What an answer says besides is asserted beside it, so a
build of the site fails when it is not so any more.
"""

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from gallery import SCRIPTS, SIZE, Gallery

import btrfs_model as bm
from btrfs_model.base.samples import data_folder, restore
from btrfs_model.ondisk.constants import FileExtentType
from btrfs_model.ondisk.keys import ItemType, ObjectId
from btrfs_model.questions.dumptree.trees import rooted_trees
from btrfs_model.volume.filesystem import Filesystem
from btrfs_model.volume.tree import Tree

GALLERY = Gallery()
disk = GALLERY.add
Asks = Iterator[tuple[str, str]]
BEGINNING = "At the beginning"
SNAPSHOTS = "Snapshots and subvolumes"
DATA = "What is in files"
NAMES = "Names"
DEVICES = "Chunks and devices"


def count(tree: Tree, kind: ItemType) -> int:
    """Count the items of a type in a tree."""
    return sum(item.key.type == kind for item in tree.items())


def addresses(tree: Tree) -> set[int]:
    """Return where the blocks of a tree are."""
    return {block.logical for block in tree.blocks()}


def allocated(fs: Filesystem, kind: str) -> int:
    """Return the bytes of devices that chunks of a kind take."""
    table = fs.stripes()
    return int(table[table["type"].str.startswith(kind)]["stripe_length"].sum())


def of_chunks(fs: Filesystem) -> list[Tree]:
    """Return the trees that say where chunks are, and what is in them."""
    return [fs.chunk_tree, fs.trees[ObjectId.DEV_TREE], fs.trees[ObjectId.EXTENT_TREE]]


# ------------------------------------------------------------------------- at the beginning --


@disk(BEGINNING, "empty", "An empty disk", "What mkfs writes before there is any file.")
def empty(fs: Filesystem) -> Asks:
    """Ask about mkfs."""
    top = fs.subvolume("").tree
    assert 5 in fs.trees
    yield "How many trees are there?", f"{len(fs.trees)}. The files are in one of them, number 5."
    items = len(list(top.items()))
    assert items == 2 and count(top, ItemType.INODE_REF) == 1
    yield (
        "What is in the tree of files?",
        f"{items} items: the inode of the top directory, and its name '..'.",
    )
    blocks = sum(len(addresses(tree)) for tree in fs.trees.values())
    assert blocks == len(fs.trees)
    yield "How many tree blocks are in use?", f"{blocks}: each tree is a single leaf."


@disk(BEGINNING, "ten-files", "Ten files", "Ten files of a few bytes each, in the top directory.")
def ten_files(fs: Filesystem) -> Asks:
    """Ask about what a small file is made of."""
    tree = fs.subvolume("").tree
    items = len(list(tree.items()))
    assert items == 2 + 10 * 5
    yield (
        "How many items are in the tree of files?",
        f"{items}. A file has 5: inode, name, content and two entries of the directory. The top "
        "directory has 2.",
    )
    outside = count(fs.trees[ObjectId.EXTENT_TREE], ItemType.EXTENT_ITEM)
    assert outside == 0
    yield (
        "How many extents of data are there?",
        f"{outside}. Such small files are inline, in the leaf beside their inode.",
    )
    yield (
        "How high is the tree?",
        f"{tree.level + 1} levels: {len(tree.blocks()) - 1} leaves of {fs.image.nodesize:,} bytes "
        "and the node above them.",
    )


@disk(BEGINNING, "many-files", "100,000 files", "One directory, and a tree that is still not high.")
def many_files(fs: Filesystem) -> Asks:
    """Ask about size."""
    tree = fs.subvolume("").tree
    blocks = tree.blocks()
    leaves = sum(block.level == 0 for block in blocks)
    files = count(tree, ItemType.INODE_ITEM) - 1
    yield "How many files are there?", f"{files:,}."
    yield (
        "How many blocks does a look-up read?",
        f"{tree.level + 1}: one on each level, of {len(blocks):,}.",
    )
    yield (
        "How many files share a leaf?",
        f"{files / leaves:.0f} on average: there are {leaves:,} leaves.",
    )


@disk(
    BEGINNING,
    "crashed",
    "After a crash",
    "The power failed after an fsync: the log has what the last commit does not have.",
)
def crashed(fs: Filesystem) -> Asks:
    """Ask about a log."""
    names = {entry.name for entry in fs.subvolume("").readdir("")}
    assert names == {b"old"}
    yield "Which files does the last commit have?", f'{len(names)}: "old".'
    (log,) = fs.log_trees.values()
    inodes = count(log, ItemType.INODE_ITEM)
    assert inodes == 1 and count(log, ItemType.EXTENT_DATA) == 1
    yield (
        "What is in the log?",
        f"{inodes} inode, with its name and its content: {len(list(log.items()))} items.",
    )
    with bm.load(fs.path, replay_behaviour="v6.12") as mounted:
        mounted.sync()
        after = {entry.name for entry in mounted.subvolume("").readdir("")}
    assert after == {b"old", b"new"}
    yield (
        "Which files are there after the next mount?",
        f'{len(after)}: "old" and "new". No fsync made "lost" last.',
    )


# ---------------------------------------------------------------- snapshots and subvolumes --


@disk(SNAPSHOTS, "before-snapshot", "Before a snapshot", "Sixty small files in one subvolume.")
def before_snapshot(fs: Filesystem) -> Asks:
    """Ask about what there is to be shared."""
    tree = fs.subvolume("").tree
    assert tree.level == 1
    yield (
        "How many blocks has the tree?",
        f"{len(tree.blocks())}: a node, and {len(tree.blocks()) - 1} leaves below it.",
    )
    yield "How many subvolumes are there?", f"{len(fs.subvolume_ids)}: the top."
    owners = {block.owner for block in tree.blocks()}
    assert owners == {5}
    yield "Who owns the blocks?", f"Tree {owners.pop()}, as the header of each says."


@disk(
    SNAPSHOTS,
    "after-snapshot",
    "After a snapshot",
    "The same files, a snapshot, and then the mode of one file is changed.",
)
def after_snapshot(fs: Filesystem) -> Asks:
    """Ask about what is shared."""
    top, snap = fs.subvolume("").tree, fs.subvolume("snap").tree
    shared = addresses(top) & addresses(snap)
    alone = addresses(top) - shared
    yield (
        "How many blocks do the two trees share?",
        f"{len(shared)} of {len(addresses(snap))}: they stand there once.",
    )
    leaves = [block for block in top.blocks() if block.logical in alone and not block.level]
    assert len(leaves) >= 2
    yield (
        "How many leaves are the top's own?",
        f"{len(leaves)}: those with the changed inode, and with the entry of the snapshot.",
    )
    owners = Counter(block.owner for block in snap.blocks() if block.logical in shared)
    assert set(owners) == {5}
    yield (
        "Who owns the shared blocks?",
        f"Tree 5 for all {owners[5]}: a header keeps the owner that the block was written for.",
    )


@disk(
    SNAPSHOTS,
    "deleted-subvolume",
    "A deleted subvolume",
    "A subvolume is copied by a snapshot, and then deleted.",
)
def deleted_subvolume(fs: Filesystem) -> Asks:
    """Ask about what a deletion leaves."""
    yield (
        "Which subvolumes have a name?",
        f'{len(fs.subvolume_ids) - 1} below the top: "{fs.subvolume_path(257)}".',
    )
    left = [item for item in fs.root_tree.items() if item.key[:2] == (256, ItemType.ROOT_ITEM)]
    orphans = [item for item in fs.root_tree.items() if item.key.type == ItemType.ORPHAN_ITEM]
    assert [item.key.offset for item in orphans] == [256] and len(left) == 1
    yield (
        "Is the tree of the deleted one still there?",
        f"Yes. Its root item is there, and {len(orphans)} orphan item says that a cleaner has to "
        "drop it.",
    )
    tree = fs.subvolume("copy").tree
    owners = Counter(block.owner for block in tree.blocks())
    assert owners[256]
    yield (
        "How many blocks of the copy were written for the deleted one?",
        f"{owners[256]} of {len(tree.blocks())}.",
    )


@disk(
    SNAPSHOTS,
    "quota",
    "Quota groups",
    "A subvolume with a limit, and a snapshot of it that was written to.",
)
def quota(fs: Filesystem) -> Asks:
    """Ask about what is counted."""
    table = fs.qgroups().set_index("path")
    home, copy = table.loc["home"], table.loc["copy"]
    yield (
        "How many bytes does the snapshot refer to?",
        f"{copy['rfer']:,}: the file, all extents of it in full, and a tree block.",
    )
    assert copy["excl"] == (256 << 10) + fs.image.nodesize
    yield (
        "How many of them are its own?",
        f"{copy['excl']:,}: what was written after the snapshot, and its leaf.",
    )
    assert home["max_rfer"] == 2 << 20
    yield (
        'How much may "home" still get?',
        f"{home['max_rfer'] - home['rfer']:,} bytes: its limit is {home['max_rfer']:,}.",
    )


# ------------------------------------------------------------------------- what is in files --


@disk(DATA, "inline-files", "Inline files", "Files of 1 to 4096 bytes: where is their content?")
def inline_files(fs: Filesystem) -> Asks:
    """Ask which are inline."""
    top = fs.subvolume("")
    extents = {entry.name: top.extents(entry.location.objectid)[0] for entry in top.readdir("")}
    inline = {name: one for name, one in extents.items() if one.type == FileExtentType.INLINE}
    assert set(inline) == {b"of-1", b"of-100", b"of-2048"}
    yield "How many files are in a leaf, with their content?", f"{len(inline)} of {len(extents)}."
    largest = max(one.length for one in inline.values())
    yield (
        "How large is the largest of them?",
        f"{largest:,} bytes, the mount option max_inline. One byte more gets an extent.",
    )
    sector = extents[b"of-2049"].disk_num_bytes
    assert sector == fs.image.sectorsize
    yield "How many bytes of the disk does the next larger file take?", f"{sector:,}: a sector."


@disk(DATA, "holes", "Holes", "Three sparse files: all hole, a hole between, and a punched one.")
def holes(fs: Filesystem) -> Asks:
    """Ask about what is not there."""
    top = fs.subvolume("")
    assert top.extents("all-hole") == []
    yield (
        "How many items of data has the file that is all hole?",
        f"{len(top.extents('all-hole'))}, for {top.inode('all-hole').size:,} bytes.",
    )
    first, second = top.extents("two-ends")
    yield (
        "How large is the hole between the ends?",
        f"{second.start - first.length:,} bytes. No item stands for it: it is where none begins.",
    )
    punched = top.extents("punched")
    assert len({one.disk_bytenr for one in punched}) == 1
    yield (
        "How many bytes does punching a hole free?",
        f"None: both parts still refer to one extent of {punched[0].disk_num_bytes:,} bytes. The "
        f"file itself has {top.inode('punched').nbytes:,}.",
    )


@disk(DATA, "compression", "Compression", "A file of one letter and one of noise, with zstd.")
def compression(fs: Filesystem) -> Asks:
    """Ask what it saves."""
    alike, noise = (fs.subvolume("").extents(name) for name in ("alike", "random"))
    on_disk = sum(one.disk_num_bytes for one in alike)
    yield (
        "How many bytes does the file of one letter take?",
        f"{on_disk:,} for {sum(one.length for one in alike):,}.",
    )
    assert len({one.length for one in alike}) == 1 and on_disk == len(alike) * fs.image.sectorsize
    yield (
        "Why is it not even less?",
        f"Each {alike[0].length:,} bytes are packed alone: {len(alike)} extents, a sector each.",
    )
    assert not any(one.compression for one in noise)
    yield (
        "How many extents of the noise are compressed?",
        f"{sum(bool(one.compression) for one in noise)}: it would not get smaller.",
    )


@disk(DATA, "preallocation", "Preallocation", "A file that got its room first, and data later.")
def preallocation(fs: Filesystem) -> Asks:
    """Ask about room."""
    extents = fs.subvolume("").extents("file")
    assert [one.type == FileExtentType.PREALLOC for one in extents] == [True, False, True]
    yield (
        "How many extent items has the file?",
        f"{len(extents)}: what is written stands between what is not.",
    )
    assert len({one.disk_bytenr for one in extents}) == 1
    yield (
        "And how many extents of the disk?",
        f"{len({one.disk_bytenr for one in extents})}, of {extents[0].disk_num_bytes:,} bytes.",
    )
    waiting = sum(one.length for one in extents if one.type == FileExtentType.PREALLOC)
    assert not any(fs.read_file("", "file")[: extents[0].length])
    yield "How many bytes read as zeros, whatever the disk has there?", f"{waiting:,}."


@disk(DATA, "reflinks", "Reflinks", "A copy that shares its data, and a write into its middle.")
def reflinks(fs: Filesystem) -> Asks:
    """Ask about sharing."""
    top = fs.subvolume("")
    original, copy = top.extents("original"), top.extents("copy")
    assert len(original) == 1
    yield (
        "How many extent items has the copy?",
        f"{len(copy)}, the original {len(original)}: the write stands between two parts.",
    )
    apart = {one.disk_bytenr: one.disk_num_bytes for one in [*original, *copy]}
    yield (
        "How many bytes of the disk do both take together?",
        f"{sum(apart.values()):,}. Two copies would take {2 * top.inode('copy').size:,}.",
    )
    extent = fs.trees[ObjectId.EXTENT_TREE].get(
        (original[0].disk_bytenr, ItemType.EXTENT_ITEM, original[0].disk_num_bytes)
    )
    assert extent is not None
    refs = int.from_bytes(extent.data[:8], "little")
    assert refs == len(original) + len(copy) - 1
    yield "How many file extents refer to the shared extent?", f"{refs}, as its item counts."


@disk(
    DATA,
    "nodatacow",
    "Without copy on write",
    "The same write into two files; one has the attribute C.",
)
def nodatacow(fs: Filesystem) -> Asks:
    """Ask where a write goes."""
    top = fs.subvolume("")
    place, copied = top.extents("in-place"), top.extents("copied")
    yield (
        "How many extent items has each file?",
        f"{len(place)} in place, {len(copied)} with copy on write.",
    )
    taken = {one.disk_bytenr: one.disk_num_bytes for one in copied}
    size = top.inode("copied").size
    assert sum(taken.values()) > size
    yield (
        "How many bytes of the disk does the copied file hold that no read returns?",
        f"{sum(taken.values()) - size:,}: the middle of its first extent.",
    )
    sums = fs.checksums
    covered = int((sums.ends - sums.starts).sum())
    assert covered == sum(taken.values())
    yield (
        "How many bytes have a checksum?",
        f"{covered:,}: those of the copied file. Data without copy on write have none.",
    )


# ------------------------------------------------------------------------------------ names --


@disk(NAMES, "hard-links", "Hard links", "One file with names in two directories.")
def hard_links(fs: Filesystem) -> Asks:
    """Ask about names."""
    top = fs.subvolume("")
    inode = top.inode("a/first")
    yield "How many names has the file?", f"{inode.nlink}, as its inode counts."
    refs = [item for item in top.tree.items() if item.key[:2] == (inode.ino, ItemType.INODE_REF)]
    assert len(refs) == 2
    yield (
        "How many items hold them?",
        f"{len(refs)}: one for each directory, with all names that are in it.",
    )
    entries = sum(entry.location.objectid == inode.ino for entry in top.readdir("a"))
    yield 'How many entries of the directory "a" lead to it?', f"{entries}."


@disk(NAMES, "attributes", "Extended attributes", "A file with two attributes and an ACL.")
def attributes(fs: Filesystem) -> Asks:
    """Ask about attributes."""
    top = fs.subvolume("")
    found = top.xattrs("file")
    assert b"system.posix_acl_access" in found
    yield (
        "How many attributes has the file?",
        f"{len(found)}: the ACL is one, system.posix_acl_access.",
    )
    ino = top.resolve("file")
    kinds = [item for item in top.tree.items() if item.key[:2] == (ino, ItemType.XATTR_ITEM)]
    assert len(kinds) == len(found)
    yield (
        "In how many items?",
        f"{len(kinds)}. The offset of the key is a hash of the name of the attribute.",
    )
    acl = len(found[b"system.posix_acl_access"])
    assert (acl - 4) % 8 == 0
    yield (
        "How many bytes does the ACL take?",
        f"{acl}: a head of 4, and {(acl - 4) // 8} entries of 8.",
    )


@disk(
    NAMES,
    "colliding-names",
    "Names that collide",
    "Two names of one hash, and a third file beside them.",
)
def colliding_names(fs: Filesystem) -> Asks:
    """Ask about hashes."""
    top = fs.subvolume("")
    names = [entry.name for entry in top.readdir("")]
    items = [item for item in top.tree.items() if item.key.type == ItemType.DIR_ITEM]
    yield (
        "How many DIR_ITEMs does the directory have?",
        f"{len(items)} for {len(names)} names: two names are in one item.",
    )
    both = max(items, key=lambda item: len(item.data))
    assert both.key.offset == 0x12345678
    yield "Which hash do the two have?", f"{both.key.offset}, the offset of the key."
    indexes = count(top.tree, ItemType.DIR_INDEX)
    assert indexes == len(names)
    yield (
        "And how many DIR_INDEXes are there?",
        f"{indexes}: each name has a number of its own, in the order in which they came.",
    )


@disk(
    NAMES,
    "renamed-tree",
    "A renamed directory",
    "A directory with fifty files below it is moved, between two snapshots.",
)
def renamed_tree(fs: Filesystem) -> Asks:
    """Ask about a move."""
    before, after = fs.subvolume("before").tree, fs.subvolume("after").tree
    shared = addresses(before) & addresses(after)
    yield (
        "How many blocks of the first snapshot does the second one share?",
        f"{len(shared)} of {len(addresses(before))}: files know their directory by its number, so "
        "they stay as they are.",
    )
    sent = bm.send(fs, "after", "before")
    assert sent.commands["rename"] == 1
    yield "How many renames has the stream between them?", f"{sent.commands['rename']}."
    yield "And how many bytes has the stream?", f"{sent.size:,}."


# ----------------------------------------------------------------------- chunks and devices --


@disk(
    DEVICES, "nearly-full", "Nearly full", "Files of 8 MiB until there is no room.", shows=of_chunks
)
def nearly_full(fs: Filesystem) -> Asks:
    """Ask about room."""
    table = fs.devices()
    left = int(table["unallocated"].iloc[0])
    yield (
        "How many bytes of the device are in no chunk?",
        f"{left:,} of {int(table['size'].iloc[0]):,}.",
    )
    top = fs.subvolume("")
    last = max(top.readdir(""), key=lambda entry: entry.location.objectid)
    pieces = top.extents(last.location.objectid)
    assert len(pieces) > 1
    yield (
        "Of how many extents is the last file?",
        f"{len(pieces)}: the gaps that were left, the larger ones first.",
    )
    metadata = allocated(fs, "METADATA")
    used = 2 * fs.image.nodesize * sum(len(tree.blocks()) for tree in fs.trees.values())
    assert used < metadata / 2
    yield (
        "Is metadata full too?",
        f"No. Its chunks have {metadata:,} bytes, of which blocks use some {used:,}: it is data "
        "that has no room.",
    )


@disk(
    DEVICES,
    "before-balance",
    "Before a balance",
    "Every second of sixty files is deleted: holes in chunks.",
    shows=of_chunks,
)
def before_balance(fs: Filesystem) -> Asks:
    """Ask about chunks."""
    data, used = allocated(fs, "DATA"), int(fs.checksums.ends.sum() - fs.checksums.starts.sum())
    yield "How many bytes do chunks of data have?", f"{data:,}."
    yield "How many of them are in use?", f"{used:,}."
    first = int(fs.checksums.starts.min())
    yield "Where do data begin?", f"At the address {first:,}."


def balanced(folder: Path) -> list[Path]:
    """Move each chunk of the disk before."""
    result = bm.script((SCRIPTS / "before-balance.sh").read_text(), size=SIZE)
    (fs,) = result.filesystems.values()
    fs.balance()
    fs.save(folder / "after-balance.img")
    result.close()
    return [folder / "after-balance.img"]


@disk(
    DEVICES,
    "after-balance",
    "After a balance",
    "The same, with each chunk moved.",
    balanced,
    shows=of_chunks,
)
def after_balance(fs: Filesystem) -> Asks:
    """Ask what moved."""
    data, used = allocated(fs, "DATA"), int(fs.checksums.ends.sum() - fs.checksums.starts.sum())
    assert used == 30 * (2 << 20)
    yield (
        "How many bytes of data are in use?",
        f"{used:,}, as many as before: a balance copies, and changes no file.",
    )
    yield "How many bytes do chunks of data have?", f"{data:,}."
    first = int(fs.checksums.starts.min())
    assert first >= min(chunk.logical for chunk in fs.image.chunks if chunk.type & 1)
    assert first > 13631488 + (8 << 20)
    yield (
        "Where do data begin?",
        f"At the address {first:,}. Addresses of chunks are never used again, so they grow.",
    )


def relocation(folder: Path) -> list[Path]:
    """Take what Linux 6.18 left in the middle of a balance."""
    return [bm.sample("kernel/balance/relocation")]


@disk(
    DEVICES,
    "mid-balance",
    "In the middle of a balance",
    "A kernel stopped here: trees are moved beside the old ones.",
    relocation,
)
def mid_balance(fs: Filesystem) -> Asks:
    """Ask about relocation trees."""
    trees = [root for root in rooted_trees(fs.image) if root.key[0] == ObjectId.TREE_RELOC]
    yield (
        "How many relocation trees are there?",
        f"{len(trees)}: one for each of {len(fs.subvolume_ids)} subvolumes.",
    )
    assert len(trees) == len(fs.subvolume_ids)
    assert fs.root_tree.get((ObjectId.BALANCE, 248, 0)) is not None
    items = sum(item.key[0] == ObjectId.BALANCE for item in fs.root_tree.items())
    yield (
        "How does the next mount know of it?",
        f"By {items} item of the root tree, with what was asked for: BALANCE, TEMPORARY_ITEM.",
    )
    moved = {fs.image.chunk_at(at) for number in fs.subvolume_ids
             for at in addresses(fs.trees[number])}  # fmt: skip
    old = {at for root in trees for at in addresses(root.tree)
           if fs.image.chunk_at(at) not in moved}  # fmt: skip
    assert old and len(moved) == 1
    yield (
        "How many blocks still lie in the chunk that is emptied?",
        f"{len(old):,}. Relocation trees alone have them: subvolumes got the moved blocks in "
        "exchange.",
    )


def several(profile: str, folder: Path) -> list[Path]:
    """Restore the devices of a filesystem that a kernel made."""
    found = []
    for packed in sorted((data_folder() / "kernel/devices" / profile).glob("*.device.zst")):
        found.append(folder / f"{profile}-{packed.name.removesuffix('.device.zst')}.img")
        with found[-1].open("w+b") as device:
            restore(packed, device.fileno())
    return found


def rotted(folder: Path) -> list[Path]:
    """Let a sector of one device rot; the devices are those that Linux 6.18 made."""
    files = several("raid1", folder)
    with bm.open(files) as fs:
        first = int(fs.checksums.starts[0])
        device, at = fs.image.byte_of_device(int(fs.image.copies(first)[0]))
    with files[device - 1].open("r+b") as file:
        file.seek(at)
        file.write(b"rotten")
    return files


@disk(
    DEVICES,
    "raid1-rotted",
    "RAID1 with a rotted sector",
    "Three devices, each byte on two of them; one byte is not what it was.",
    rotted,
    shows=of_chunks,
)
def raid1_rotted(fs: Filesystem) -> Asks:
    """Ask about copies."""
    copies = len(fs.image.copies(int(fs.checksums.starts[0])))
    assert copies == 2
    yield (
        "How many copies has each byte of data?",
        f"{copies}, on {copies} of {len(fs.devices())} devices.",
    )
    found = bm.check(fs, verify_data=True)
    yield (
        "What does a read of all copies find?",
        f"{len(found)} problem: a sector differs from its checksum.",
    )
    healed = bm.heal([member.path for member in fs.image.devices])
    assert healed.is_whole and len(healed.table) == len(found) == 1
    yield (
        "Can it be made right?",
        f"Yes. {len(healed.table)} range of {int(healed.table['length'].sum()):,} bytes is written "
        "again from the other copy.",
    )


def raid0(folder: Path) -> list[Path]:
    """Take the devices that Linux 6.18 made."""
    return several("raid0", folder)


@disk(
    DEVICES,
    "raid0",
    "RAID0",
    "Data are dealt out to the devices, 64 KiB to each in turn.",
    raid0,
    shows=of_chunks,
)
def raid0_asks(fs: Filesystem) -> Asks:
    """Ask about stripes."""
    (chunk,) = fs.image.chunks[-1:]
    devices = len(fs.devices())
    yield "On how many devices is a chunk of data?", f"{len(chunk.devids)} of {devices}."
    table = fs.stripes()
    data = table[table["type"] == "DATA|RAID0"]
    logical = data.groupby("chunk")["length"].first().sum()
    assert logical == data["stripe_length"].sum()
    yield (
        "How many bytes of devices does a byte of data take?",
        f"{data['stripe_length'].sum() / logical:.0f}. There is no second copy.",
    )
    start = int(fs.checksums.starts[0]) // (64 << 10) * (64 << 10)
    places = [fs.image.byte_of_device(int(fs.image.copies(start + at)[0]))[0]
              for at in (0, 64 << 10)]  # fmt: skip
    assert places[0] != places[1]
    yield (
        "Where do the first 64 KiB of data lie, and where the next?",
        f"On device {places[0]}, and on device {places[1]}.",
    )


def raid5(folder: Path) -> list[Path]:
    """Take the devices that Linux 6.18 made."""
    return several("raid5", folder)


@disk(
    DEVICES,
    "raid5",
    "RAID5",
    "Like RAID0, with a parity in each row of stripes.",
    raid5,
    shows=of_chunks,
)
def raid5_asks(fs: Filesystem) -> Asks:
    """Ask about parity."""
    table = fs.stripes()
    data = table[table["type"] == "DATA|RAID5"]
    chunk = data[data["chunk"] == data["chunk"].iloc[0]]
    width = len(chunk)
    assert chunk["stripe_length"].sum() * (width - 1) == chunk["length"].iloc[0] * width
    yield (
        "How many devices does a row of stripes have?",
        f"{width}: {width - 1} with data, and 1 with their parity.",
    )
    yield (
        "How many bytes of devices do 100 bytes of data take?",
        f"{100 * chunk['stripe_length'].sum() / chunk['length'].iloc[0]:.0f}.",
    )
    left = [member.path for member in fs.image.devices][:-1]
    files = [item.key[0] for item in fs.subvolume("snap").tree.items()
             if item.key.type == ItemType.EXTENT_DATA]  # fmt: skip
    with bm.open(left, degraded=True) as broken:
        same = sum(fs.read_file("snap", file) == broken.read_file("snap", file)
                   for file in set(files))  # fmt: skip
    assert same == len(set(files))
    yield (
        "How many files can be read without the last device?",
        f"All {same} that have data. What was on the device follows from the rest and the parity.",
    )
