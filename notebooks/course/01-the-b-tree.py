# %% [markdown]
# # 01 · The b-tree
#
# One tree block holds some hundred items. What happens when there are more? In this notebook a
# tree grows before our eyes, and stays sorted.

# %%
import btrfs_model as bm

fs = bm.create("256M", nodesize=4096, seed=1)
fs.sync()
bm.draw(fs.subvolume(""))

# %% [markdown]
# ## Leaves and nodes
#
# We take tree blocks of 4096 bytes, the smallest there are, so that they fill soon. A new
# filesystem has just one for its files. A tree block with items is a **leaf**. Let us make files,
# and look again.

# %%
for number in range(15):
    fs.create(f"file{number:02}")
fs.sync()
bm.draw(fs.subvolume(""))

# %% [markdown]
# The leaf was full and was **split**: its items were shared out between two leaves. A new block
# above them says which keys begin where. A block that points at other blocks is a **node**. The
# block at the top is the **root**; how far a block is above the leaves is its **level**. A tree of
# this kind, sorted and with many keys in each block, is a **b-tree**.
#
# ## How a search goes
#
# To find a key, start at the root. Take the last pointer whose key is not larger than the one that
# is sought, and go down. In a leaf, look at the keys. In each block the right place is found by
# halving: is it before the middle or behind it?
#
# **Guess:** how many blocks does a search read when there are 100,000 files, with blocks of 4096
# bytes? A node has room for 121 pointers, a leaf for the items of some ten files.

# %%
for files in (100, 10_000, 100_000):
    with bm.create("2G", nodesize=4096, seed=1) as large:
        large.mkdir("d")
        large.create_files("d", [f"file{number:06}" for number in range(files)])
        large.sync()
        blocks = large.tree(5).blocks()
        leaves = sum(block.level == 0 for block in blocks)
        print(f"{files:7,} files: {leaves:6,} leaves, {large.tree(5).level + 1} levels")

# %% [markdown]
# Three blocks, of more than nine thousand. That is the point of a b-tree: a thousand times the
# files make it one level higher.
#
# ## Step by step
#
# Let us watch one leaf fill. After each new file we draw the tree, and count the items of each
# leaf. Choose a step below, and go on with the arrow keys.

# %%
with bm.create("256M", nodesize=4096, seed=1) as small:
    steps = {}
    for number in range(14):
        small.create(f"file{number:02}")
        small.sync()
        items = [block.nritems for block in small.tree(5).blocks() if block.level == 0]
        caption = f"file {number + 1}, {' + '.join(map(str, items))} items"
        steps[caption] = bm.draw(small.subvolume(""))
bm.draw(steps)

# %% [markdown]
# The eleventh file is the one that the leaf has no room for. What is filled is not in the step
# before. Look at the addresses: why are all blocks new, after each file? The next notebook tells.
#
# ## Where a leaf is split
#
# When a leaf is full, the kernel first looks whether a neighbour has room, and moves items there.
# Only else does it split. And when the new item belongs at the very end, it does not halve
# anything: it starts a fresh leaf, as more will come after it. Files that are made one after the
# other have rising inode numbers, and so most leaves end up full.


# %%
def fill(names):
    """Make files in this order; return how full the leaves are."""
    with bm.create("256M", nodesize=4096, seed=1) as one:
        one.mkdir("d")
        one.create_files("d", names)
        one.sync()
        return bm.tree_stats(one).set_index("name").loc["FS_TREE", "fill_mean"]


names = [f"file{number:05}" for number in range(5000)]
print(f"leaves are {fill(names):.0%} full")

# %% [markdown]
# ## Is this what a kernel does?
#
# Linux 6.1 filled a filesystem with tree blocks of 4096 bytes for us. We go through all of its
# trees and test the rules: keys rise within a block, each child begins with the key that its parent
# has for it, and it is one level below.

# %%
kernel = bm.open(bm.sample("kernel/features/nodesize-4096"))
tested = 0
for objectid in kernel.trees:
    blocks = {block.logical: block for block in kernel.tree(objectid).blocks()}
    for block in blocks.values():
        if block.parent:
            parent = blocks[block.parent]
            assert block.level == parent.level - 1
            assert block.first >= parent.first
            tested += 1
    keys = [item.key for item in kernel.tree(objectid).items()]
    assert keys == sorted(keys)
print(tested, "pointers tested in", len(kernel.trees), "trees")

# %% [markdown]
# ## Exercises
#
# **Exercise 1.** How many blocks does the search for one key visit? Let `visited(fs)` return the
# number for the fs tree of a filesystem, from the level of its root (`fs.tree(5).level`).
#
# <details><summary>A solution</summary>
#
# ```python
# def visited(fs):
#     return fs.tree(5).level + 1
# ```
# </details>


# %% tags=["exercise"]
def visited(fs): ...  # yours


# %% tags=["check"]
print("right" if visited(fs) == 2 and visited(kernel) == kernel.tree(5).level + 1 else "not yet")

# %% [markdown]
# **Exercise 2.** Names matter: an item of a directory takes more room when the name is longer. How
# many files of a name of 100 characters does it take until the fs tree has its second level? Let
# `files_until_split()` try it, as above.
#
# <details><summary>A solution</summary>
#
# ```python
# def files_until_split():
#     with bm.create("256M", nodesize=4096, seed=1) as one:
#         number = 0
#         while not one.tree(5).level:
#             one.create(f"{number:0100}")
#             one.sync()
#             number += 1
#         return number
# ```
# </details>


# %% tags=["exercise"]
def files_until_split(): ...  # yours


# %% tags=["check"]
count = files_until_split()
print("right" if isinstance(count, int) and 4 <= count <= 8 else "not yet")

# %% [markdown]
# Next: [02](02-copy-on-write.ipynb).
