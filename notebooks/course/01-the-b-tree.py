# %% [markdown]
# # 01 · The b-tree
#
# A tree block has an end. What happens when there are more items than it has room for? In this
# notebook a tree grows before our eyes, and stays sorted.

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

# %% tags=["claims", "hide-input"]
# what the text says
blocks = fs.tree(5).blocks()
assert fs.image.nodesize == 4096
assert [block.level for block in blocks] == [1, 0, 0]

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

# %% tags=["hide-output"]
grown = {}
for files in (100, 10_000, 100_000):
    with bm.create("2G", nodesize=4096, seed=1) as large:
        large.mkdir("d")
        large.create_files(
            "d", [f"file{number:06}" for number in range(files)]
        )
        large.sync()
        blocks = large.tree(5).blocks()
        leaves = sum(block.level == 0 for block in blocks)
        levels = large.tree(5).level + 1
        grown[files] = leaves, levels
    print(
        f"{files:7,} files: {leaves:6,} leaves, {levels} blocks read"
    )

# %% [markdown]
# So few, of so many. That is the point of a b-tree: here a thousand times the files make it one
# level higher.

# %% tags=["claims", "hide-input"]
# what the text says: a block's header has 101 bytes, a pointer 33
assert (4096 - 101) // 33 == 121
leaves, levels = grown[100_000]
assert 9 < 100_000 / leaves < 12
assert levels == grown[100][1] + 1

# %% [markdown]
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
        blocks = small.tree(5).blocks()
        items = [
            block.nritems for block in blocks if block.level == 0
        ]
        in_leaves = " + ".join(map(str, items))
        steps[f"file {number + 1}, {in_leaves} items"] = bm.draw(
            small.subvolume("")
        )
bm.draw(steps)

# %% [markdown]
# The eleventh file is the one that the leaf has no room for. What is filled is not in the step
# before. Look at the addresses: why are all blocks new, after each file? The next notebook tells.

# %% tags=["claims", "hide-input"]
# what the text says: the caption of a step with two leaves has a plus
two = [
    number
    for number, caption in enumerate(steps, 1)
    if "+" in caption
]
assert two[0] == 11

# %% [markdown]
# ## Where a leaf is split
#
# When a leaf is full, the kernel first looks whether a neighbour has room, and moves items there.
# Where none has, it splits the leaf in halves. Let us see that with a file whose extents come one
# after the other, so that each new item belongs at the very end.

# %%
with bm.create("256M", nodesize=4096, seed=1) as one:
    one.create("f")
    halves, before = [], []
    for number in range(130):
        one.write("f", 8192 * number, b"x" * 4096)
        one.sync()
        blocks = one.tree(5).blocks()
        now = [block.nritems for block in blocks if block.level == 0]
        if number and len(now) > len(before):
            halves.append((before, now))
            print(f"extent {number}: items {before} become {now}")
        before = now
    print("at the end:", now)

# %% [markdown]
# The leaf at the end *is* halved, although every later extent belongs behind the left half. But
# that room is not lost: when the last leaf is full the next time, its neighbour has room, and takes
# items. At the end the second leaf is as full as the first.

# %% tags=["claims", "hide-input"]
# what the text says; Linux 6.18 splits there, too
assert halves == [([50], [25, 26]), ([50, 51], [50, 26, 26])]
assert now == [50, 51, 35]


# %% [markdown]
# So leaves that were passed by end up full. New inodes have rising numbers: their items come at the
# end, in whatever order the names are. Does it show in a large directory?

# %%
import random


def fill(names):
    """Make files in this order; return how full the leaves are."""
    with bm.create("256M", nodesize=4096, seed=1) as one:
        one.mkdir("d")
        one.create_files("d", names)
        one.sync()
        return (
            bm.tree_stats(one)
            .set_index("name")
            .loc["FS_TREE", "fill_mean"]
        )


names = [f"file{number:05}" for number in range(5000)]
shuffled = random.Random(1).sample(names, len(names))
for order, some in (("sorted", names), ("shuffled", shuffled)):
    full = fill(some)
    print(f"names {order}: leaves are {full:.0%} full")
    assert full > 0.9

# %% [markdown]
# ## Is this what a kernel does?
#
# Linux 6.1 filled a filesystem with tree blocks of 4096 bytes for us. We go through all of its
# trees and test the rules: keys rise from item to item, a node has the keys with which its children
# begin, and each child is one level below.

# %%
kernel = bm.open(bm.sample("kernel/features/nodesize-4096"))
tested = 0
for objectid in kernel.trees:
    blocks = {
        block.logical: block
        for block in kernel.tree(objectid).blocks()
    }
    for block in blocks.values():
        if block.parent:
            parent = blocks[block.parent]
            assert block.level == parent.level - 1
            assert block.first >= parent.first
            if block.parent_slot == 0:
                assert block.first == parent.first
            tested += 1
    keys = [item.key for item in kernel.tree(objectid).items()]
    assert keys == sorted(keys)
print(tested, "pointers tested in", len(kernel.trees), "trees")

# %% [markdown]
# ## Exercises
#
# **Exercise 1.** Which blocks does the search for one key visit? Let `visited(fs, key)` return the
# list of their addresses in the fs tree, from the root down to the leaf. Each block of
# `fs.tree(5).blocks()` has a `level`, a `logical` address and the `first` key in it.
#
# <details><summary>A solution</summary>
#
# ```python
# def visited(fs, key):
#     way = []
#     for level in range(fs.tree(5).level, -1, -1):
#         row = [b for b in fs.tree(5).blocks() if b.level == level]
#         before = [b for b in row if b.first <= key]
#         way.append(max(before, key=lambda b: b.first).logical)
#     return way
# ```
# </details>


# %% tags=["exercise"]
def visited(fs, key): ...  # yours


# %% tags=["check", "hide-input"]
from btrfs_model.base.exercises import judge


def way_of(fs, key):
    """From the leaf with the key up to the root, turned around."""
    blocks = {block.logical: block for block in fs.tree(5).blocks()}
    leaves = [block for block in blocks.values() if block.level == 0]
    after = [block for block in leaves if block.first > key]
    at = leaves[len(leaves) - len(after) - 1]
    way = [at.logical]
    while at.parent:
        way.insert(0, at.parent)
        at = blocks[at.parent]
    return way


@judge
def wrong():
    for files in (3, 40, 2000):
        with bm.create("256M", nodesize=4096, seed=2) as one:
            one.mkdir("d")
            one.create_files(
                "d", [f"{name}" for name in range(files)]
            )
            one.sync()
            for inode in (256, 258, 257 + files):
                key = (inode, 1, 0)
                if (said := visited(one, key)) != way_of(one, key):
                    what = f"the inode {inode} among {files} files"
                    return f"on the way to {what} it names {said}"
    return None


# %% [markdown]
# **Exercise 2.** Names matter: an item of a directory takes more room when the name is longer. How
# many files does it take until the fs tree has its second level? Let `files_until_split(length)`
# try it as above, with tree blocks of 4096 bytes and names of that length: `f"{number:0{length}}"`
# for file after file, from 0 on.
#
# <details><summary>A solution</summary>
#
# ```python
# def files_until_split(length):
#     with bm.create("256M", nodesize=4096, seed=1) as one:
#         number = 0
#         while not one.tree(5).level:
#             one.create(f"{number:0{length}}")
#             one.sync()
#             number += 1
#         return number
# ```
# </details>


# %% tags=["exercise"]
def files_until_split(length): ...  # yours


# %% tags=["check", "hide-input"]
@judge
def wrong():
    for length in (8, 60, 100, 200):
        said = files_until_split(length)
        if not isinstance(said, int) or said < 1:
            return (
                f"for names of {length} characters it returns {said}"
            )
        levels = []
        for files in (said - 1, said):
            with bm.create("256M", nodesize=4096, seed=1) as one:
                for number in range(min(files, 50)):
                    one.create(f"{number:0{length}}")
                    one.sync()
                levels.append(one.tree(5).level)
        if levels != [0, 1]:
            return (
                f"with names of {length} characters and {said} files "
                f"the tree has {levels[1] + 1} levels, "
                f"and with a file less {levels[0] + 1}"
            )
    return None


# %% [markdown]
# Next: [02](02-copy-on-write.ipynb).
