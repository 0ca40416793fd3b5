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
# and mounted by Linux, it is a btrfs like any other. Its bytes are used in units: a **sector** is
# 4096 bytes, the least that is given to a file. What describes files lies in larger units of
# 16 KiB, the **tree blocks**. And one place is fixed: at byte 65,536 lies the **superblock**. It is
# the only thing that can be found without looking anything up.

# %%
superblock = fs.image.superblock
print("bytes of a sector:", superblock.sectorsize)
print("bytes of a tree block:", superblock.nodesize)
print("address of the root tree:", superblock.root)
print("address of the chunk tree:", superblock.chunk_root)

# %% [markdown]
# **Guess before you go on:** the file `large` has 100,000 bytes. How many sectors does it take?

# %%
(extent,) = fs.subvolume("").extents("large")
print(extent.disk_num_bytes // superblock.sectorsize, "sectors,", extent.disk_num_bytes, "bytes")

# %% [markdown]
# ## Addresses are not places
#
# All addresses in btrfs are **logical addresses**: numbers in one large space. A **chunk** maps a
# run of them to bytes of the disk. So the filesystem can move data, or keep two copies of it, and
# no address changes. Three chunks are enough here: one for file data, two for tree blocks. The
# latter have two places each: every tree block is stored twice.

# %%
for chunk in fs.image.chunks:
    print(f"{chunk.length >> 20:3} MiB from {chunk.logical:,} lie at {chunk.stripes}")

# %% [markdown]
# ## Trees
#
# Everything else is in trees. Let us draw them all. The superblock stands at the left; arrows show
# who has the address of whom.

# %%
bm.draw(fs)

# %% [markdown]
# Each box at the right is one tree block. The superblock leads to the **root tree**, which has the
# address of every other tree. The one called *fs tree* has our files. Let us look at it alone, and
# see how its block is packed.

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
# `docs/note3` we need two entries and one inode.

# %%
top = fs.subvolume("")
docs = top.lookup(256, b"docs")
note = top.lookup(docs.location.objectid, b"note3")
print("docs is inode", docs.location.objectid)
print("docs/note3 is inode", note.location.objectid)
for item in files.items((note.location.objectid, 0, 0), (note.location.objectid, 255, 2**64 - 1)):
    print(item.key, len(item.data), "bytes")

# %% [markdown]
# Three items: the inode, its name, its data. The data of so small a file lie in the item itself:
# they are **inline**. The 100,000 bytes of `large` do not fit into a tree block. Its item only says
# where they lie: a run of sectors that lie together is an **extent**.

# %%
for path in ("docs/note3", "large"):
    for extent in top.extents(path):
        print(path, "inline" if extent.inline else f"at {extent.disk_bytenr:,}", extent.length)

# %% [markdown]
# ## Is this what a kernel makes?
#
# Everything up to here was made by a model of btrfs, not by Linux. Linux 5.10 made an image of 20
# empty files for us. Which trees does it have, and which of them has the model's as well?

# %%
kernel = bm.open(bm.sample("kernel/log/nd/nd_20_5/5.10/committed1"))
ours, theirs = (set(bm.tree_stats(one)["name"]) for one in (fs, kernel))
print("in both:", sorted(ours & theirs))
print("only in ours:", sorted(ours - theirs), " only in the kernel's:", sorted(theirs - ours))

# %% [markdown]
# The same nine. What the others are for comes bit by bit.
#
# ## Exercises
#
# **Exercise 1.** How many items has the fs tree for a file that is empty? Let `answer` return the
# number; `fs.tree(5).items()` gives all items.
#
# <details><summary>A solution</summary>
#
# ```python
# def answer():
#     ino = fs.subvolume("").resolve("docs/note0")
#     return sum(item.key.objectid == ino for item in fs.tree(5).items())
# ```
#
# It has no data, so the inode and its name are all.
# </details>


# %% tags=["exercise"]
def answer(): ...  # yours


# %% tags=["check"]
print("right" if answer() == 2 else "not yet")

# %% [markdown]
# **Exercise 2.** A file's name stands in three items. Which types are they? Let `types` return the
# set of their numbers (`item.key.type`) for the name `note3`: search the bytes of each item
# (`item.data`) for `b"note3"`.
#
# <details><summary>A solution</summary>
#
# ```python
# def types():
#     return {item.key.type for item in fs.tree(5).items() if b"note3" in bytes(item.data)}
# ```
#
# The reference of the inode, and the entry of the directory twice: once to find the name fast, and
# once to list the directory. We come back to that in notebook 05.
# </details>


# %% tags=["exercise"]
def types(): ...  # yours


# %% tags=["check"]
print("right" if types() == {12, 84, 96} else "not yet")

# %% [markdown]
# Next: [01](01-the-b-tree.ipynb).
