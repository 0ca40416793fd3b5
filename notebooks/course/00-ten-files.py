# %% [markdown]
# # 00 · A filesystem of ten files
#
# A disk gives us numbered bytes and nothing else. A **filesystem** makes files, names and
# directories of them. How does it find a file by its name when all that it has is bytes? In this
# notebook we make a small btrfs, and go from its first fixed byte to a file, step by step.

# %%
import btrfs_model as bm

fs = bm.create("256M", seed=1)
fs.mkdir("docs")
for number in range(9):
    fs.create(f"docs/note{number}")
    fs.write(f"docs/note{number}", 0, b"hello " * 10 * number)
fs.create("large")
fs.write("large", 0, b"x" * 100_000)
fs.sync()

# %% [markdown]
# ## What lies where
#
# `fs` is a filesystem in memory, laid out as it would be on a disk: an **image**. Saved to a file
# and mounted by Linux, it is a btrfs like any other. Its bytes are used in units: a **sector** of
# 4096 bytes is the least that is given to a file, unless the file is so small that it needs none.
# What describes files lies in larger units of 16 KiB, the **tree blocks**. And one thing is found
# without looking anything up: at byte 65,536 lies the **superblock**. There are copies of it for
# bad days, at 64 MiB and at 256 GiB, where the disk is as large as that: ours has the first of
# them. A mount reads the one at 65,536 and no other; `btrfs rescue super-recover` takes a copy.

# %%
superblock = fs.image.superblock
print("bytes of a sector:", superblock.sectorsize)
print("bytes of a tree block:", superblock.nodesize)
print("address of the root tree:", superblock.root)
print("address of the chunk tree:", superblock.chunk_root)

# %% tags=["claims", "hide-input"]
# what the text says
assert (superblock.sectorsize, superblock.nodesize) == (
    4096,
    16 << 10,
)
disk = fs.image.view
magics = [bytes(disk[at + 64 : at + 72]) for at in (65_536, 64 << 20)]
assert magics == [b"_BHRfS_M", b"_BHRfS_M"]
assert len(disk) < 256 << 30

# %% [markdown]
# **Guess before you go on:** the file `large` has 100,000 bytes. How many sectors does it take?

# %% tags=["hide-output"]
(extent,) = fs.subvolume("").extents("large")
sectors = extent.disk_num_bytes // superblock.sectorsize
print(sectors, "sectors,", extent.disk_num_bytes, "bytes")
assert len(fs.read_file("", "large")) == 100_000

# %% [markdown]
# ## Addresses are not places
#
# Files and trees are found by **logical addresses**: numbers in one large space. A **chunk** maps
# a run of them to bytes of the disk. So a chunk can be put on another disk, or be stored twice, and
# no address changes. Three chunks are enough here: one for file data, two for tree blocks. The
# latter have two places each: every tree block is stored twice.

# %%
for chunk in fs.image.chunks:
    length = f"{chunk.length >> 20:3} MiB"
    print(f"{length} from {chunk.logical:,} lie at {chunk.stripes}")

# %% tags=["claims", "hide-input"]
# what the text says; the bit 1 of a chunk's type means file data
places = [
    (chunk.type & 1, len(chunk.stripes)) for chunk in fs.image.chunks
]
assert places == [(1, 1), (0, 2), (0, 2)]

# %% [markdown]
# ## Trees
#
# All that is known of files is in trees. Let us draw them all. The superblock stands at the left;
# arrows show who has the address of whom.

# %%
bm.draw(fs)

# %% [markdown]
# Each box at the right is one tree block. The superblock leads to two trees. (There may be a third,
# which comes in notebook 07.) The **chunk tree** has the chunks: without them no address can be
# followed. But it lies in a chunk itself, so the superblock has a copy of that one. The **root
# tree** has the addresses of the other trees. The one called *fs tree* has our files. Let us look at
# it alone, and see how its block is packed.

# %% tags=["claims", "hide-input"]
# what the text says; 132: ROOT_ITEM, 228: CHUNK_ITEM
named = {
    item.key.objectid
    for item in fs.root_tree.items()
    if item.key.type == 132
}
ROOT_TREE, CHUNK_TREE = 1, 3
assert named == fs.trees.keys() - {ROOT_TREE, CHUNK_TREE}
assert (fs.root_tree.bytenr, fs.chunk_tree.bytenr) == (
    superblock.root,
    superblock.chunk_root,
)
chunks = [
    item for item in fs.chunk_tree.items() if item.key.type == 228
]
assert len(chunks) == len(fs.image.chunks)
(of_trees,) = superblock.sys_chunks
assert of_trees in fs.image.chunks and superblock.log_root == 0
assert 0 <= superblock.chunk_root - of_trees.logical < of_trees.length

# %%
files = fs.tree(5)
bm.draw(fs.image.block(files.bytenr))

# %% [markdown]
# The block holds **items**. Each has a **key** of three numbers, written `(objectid type offset)`,
# and some bytes that belong to it. Items are sorted by their keys. The headers grow from the front
# of the block, the bytes from the back; what is between them is free.
#
# The first number of a key, the **objectid**, says what the item is about. In this tree it is an
# **inode number**: each file and each directory, the top one included, has one. The type says what
# the item tells about it:
#
# - `INODE_ITEM`: size, owner, times: the **inode**;
# - `INODE_REF`: a name of it, and in which directory;
# - `DIR_ITEM`, `DIR_INDEX`: an entry of a directory: a name, and the inode number behind it;
# - `EXTENT_DATA`: bytes of the file, or where they are.

# %% [markdown]
# ## From a name to bytes
#
# Now we can follow a path as the kernel does. The top directory has the inode number 256. To find
# `docs/note3` we need two entries, and then the inode. (The kernel reads the inodes of the
# directories on the way as well: they say who may pass.)

# %%
top = fs.subvolume("")
docs = top.lookup(256, b"docs")
note = top.lookup(docs.location.objectid, b"note3")
print("docs is inode", docs.location.objectid)
print("docs/note3 is inode", note.location.objectid)
inode = note.location.objectid
about = list(files.items((inode, 0, 0), (inode, 255, 2**64 - 1)))
for item in about:
    print(item.key, len(item.data), "bytes")

# %% [markdown]
# Three items: the inode, its name, its data. The data of so small a file lie in the item itself:
# they are **inline**. The 100,000 bytes of `large` do not fit into a tree block. Its item says
# where they lie, and no more: a run of sectors that lie together is an **extent**.

# %% tags=["claims", "hide-input"]
# what the text says; 1: INODE_ITEM, 12: INODE_REF, 108: EXTENT_DATA
assert docs.location.objectid != 256
assert [item.key.type for item in about] == [1, 12, 108]
assert b"hello hello" in bytes(about[2].data)
(large,) = top.extents("large")
assert superblock.nodesize < 100_000 and not large.inline

# %%
for path in ("docs/note3", "large"):
    for extent in top.extents(path):
        where = (
            "inline"
            if extent.inline
            else f"at {extent.disk_bytenr:,}"
        )
        print(path, where, extent.length)

# %% [markdown]
# ## Is this what a kernel makes?
#
# Everything up to here was made by a model of btrfs, not by Linux. Linux 5.10 made an image of 20
# empty files for us. Which trees does it have, and which of them has the model's as well?

# %%
kernel = bm.open(bm.sample("kernel/log/nd/nd_20_5/5.10/committed2"))
ours, theirs = (
    set(bm.tree_stats(one)["name"]) for one in (fs, kernel)
)
print("in both:", sorted(ours & theirs))
print("in ours alone:", sorted(ours - theirs))
print("in the kernel's alone:", sorted(theirs - ours))

# %% tags=["claims", "hide-input"]
# what the text says
assert ours == theirs and len(ours) == 9
listing = kernel.listing("")
is_file = (
    listing["mode"] // 4096 == 0o10
)  # the kind is in the upper bits
assert (listing["size"][is_file] == 0).sum() == is_file.sum() == 20

# %% [markdown]
# The same nine. What the others are for comes bit by bit.
#
# ## Exercises
#
# An exercise is a function that waits for your lines. The cell behind it says whether they are
# right, or why not yet. It tries them on filesystems that you have not seen.
#
# **Exercise 1.** How many items has the fs tree of a file? Let `items_of(fs, path)` return the
# number: `fs.subvolume("").resolve(path)` is the inode number, and `fs.tree(5).items()` gives all
# items. How many has a file that is empty?
#
# <details><summary>A solution</summary>
#
# ```python
# def items_of(fs, path):
#     inode = fs.subvolume("").resolve(path)
#     items = fs.tree(5).items()
#     return sum(item.key.objectid == inode for item in items)
# ```
#
# An empty file has no data: the inode and its name are all.
# </details>


# %% tags=["exercise"]
def items_of(fs, path): ...  # yours


# %% tags=["check", "hide-input"]
from btrfs_model.base.exercises import judge


@judge
def wrong():
    with bm.create("256M", seed=2) as one:
        for name in ("empty", "small", "holes"):
            one.create(name)
        one.write("small", 0, b"s" * 50)
        for place in range(5):
            one.write("holes", 8192 * place, b"h" * 4096)
        one.sync()
        for path, right in (("empty", 2), ("small", 3), ("holes", 7)):
            if (said := items_of(one, path)) != right:
                return f"it returns {said} for another file, {path!r}"
    return None


# %% [markdown]
# **Exercise 2.** A file's name stands in three items. Which types are they? Let `types(fs, name)`
# return the set of their numbers (`item.key.type`): search the bytes of each item of `fs.tree(5)`
# (`item.data`) for the name, given as bytes. Is it the same for other names?
#
# <details><summary>A solution</summary>
#
# ```python
# def types(fs, name):
#     items = fs.tree(5).items()
#     return {item.key.type for item in items if name in bytes(item.data)}
# ```
#
# The reference of the inode, and the entry of the directory twice: once to find the name fast, and
# once to list the directory. We come back to that in notebook 05.
# </details>


# %% tags=["exercise"]
def types(fs, name): ...  # yours


# %% tags=["check", "hide-input"]
@judge
def wrong():
    with bm.create("256M", seed=2) as one:
        one.create("a file")
        one.create_subvolume("a subvolume")
        one.symlink("to nothing", "a link")
        one.sync()
        for name, right in (
            (b"a file", {12, 84, 96}),
            (b"a subvolume", {84, 96}),
            (b"to nothing", {108}),
            (b"not there", set()),
        ):
            if (said := types(one, name)) != right:
                return f"for {name} elsewhere it returns {said}"
    return None


# %% [markdown]
# Next: [01](01-the-b-tree.ipynb).
