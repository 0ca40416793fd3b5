# %% [markdown]
# # 03 · Snapshots, and who owns a block
#
# A copy of a directory with a terabyte in it takes hours. btrfs can make one in a moment, and at
# first it takes no room. How can that be?

# %%
import btrfs_model as bm

fs = bm.create("256M", nodesize=4096, seed=1)
fs.create_files("", [f"file{number:02}" for number in range(60)])
fs.sync()

# %% [markdown]
# ## One root more
#
# A tree of files is a **subvolume**. A filesystem can have many; the first one, with the number 5,
# is the top. A **snapshot** is a subvolume that begins as a copy of another. With copy on write the
# copy is cheap: the new tree gets a root of its own, which points at the very same blocks.

# %%
steps = {"60 files": bm.draw(fs.subvolume(""))}
fs.snapshot("", "snap")
fs.sync()
steps["a snapshot"] = bm.draw([fs.subvolume(""), fs.subvolume("snap")])
bm.draw(steps)

# %% [markdown]
# Black boxes belong to both trees. The two first leaves differ for a reason: the snapshot was given
# the name `snap` in the top directory, after it was taken. A snapshot does not contain itself.
#
# **Guess:** now we change one file in the top. Which blocks will be shared no more?

# %%
fs.chmod("file40", 0o600)
fs.sync()
steps["file40 is changed in the top"] = bm.draw([fs.subvolume(""), fs.subvolume("snap")])
bm.draw(steps)

# %% [markdown]
# One more leaf was copied, and belongs to the top alone. The snapshot still has the old one. Both
# share what neither has changed since. So a snapshot costs nothing when it is taken; it costs
# later, as the two grow apart.
#
# ## Who may free a block?
#
# When a file is deleted from the top, a block that the snapshot has as well must stay. So for each
# block there is a count of those who refer to it, in the **extent tree**. Let us look it up for a
# block that is shared and for one that is not.

# %%
import struct

blocks = {name: {b.logical: b for b in fs.subvolume(name).tree.blocks()} for name in ("", "snap")}
shared = sorted(blocks[""].keys() & blocks["snap"].keys())
alone = sorted(blocks[""].keys() - blocks["snap"].keys())


def references(logical, level):
    """The count of references in the extent tree."""
    item = fs.tree(2).get((logical, 169, level))  # 169: METADATA_ITEM
    return struct.unpack_from("<Q", item.data)[0]


for logical in (shared[0], alone[-1]):
    print(f"{logical:,}: references {references(logical, blocks[''][logical].level)}")

# %% [markdown]
# Why is that enough? A reference counts a *pointer*, not a tree. Where a whole node is shared, what
# is below it is pointed at by that one node, and counts one, however many trees come by. Its
# children have one reference more only when the node itself is copied. So a snapshot of a million
# files changes the counts of a few blocks: those that its new root points at.

# %%
for block in fs.subvolume("snap").tree.blocks():
    count = references(block.logical, block.level)
    print(f"level {block.level}, {block.logical:,}: references {count}")

# %% [markdown]
# ## How much is whose
#
# What would be free if the snapshot were deleted? Only what it has alone. `du` counts file data so.

# %%
fs.create("data")
fs.write("data", 0, b"d" * 300_000)
fs.sync()
fs.snapshot("", "second")
fs.write("data", 0, b"e" * 100_000)
fs.sync()
bm.du(fs, "", "second")

# %% [markdown]
# ## Is this what a kernel does?
#
# In an image that a kernel made, we count for each tree block the pointers to it, over all trees,
# and compare with the extent tree.

# %%
kernel = bm.open(bm.sample("kernel/counts/W3/snap200"))
seen = {}
for number in kernel.trees:
    for block in kernel.tree(number).blocks():
        seen.setdefault(block.logical, (block.level, set()))[1].add(block.parent or -number)
compared = 0
for logical, (level, parents) in seen.items():
    item = kernel.tree(2).get((logical, 169, level))
    if item is not None:
        assert struct.unpack_from("<Q", item.data)[0] == len(parents)
        compared += 1
print(compared, "tree blocks: each count is that of the pointers to it")

# %% [markdown]
# ## Exercises
#
# **Exercise 1.** How many tree blocks do two subvolumes share? Let `count_shared(fs, one, other)`
# tell.
#
# <details><summary>A solution</summary>
#
# ```python
# def count_shared(fs, one, other):
#     first, second = (
#         {block.logical for block in fs.subvolume(name).tree.blocks()} for name in (one, other)
#     )
#     return len(first & second)
# ```
# </details>


# %% tags=["exercise"]
def count_shared(fs, one, other): ...  # yours


# %% tags=["check"]
same = count_shared(fs, "snap", "snap") == len(fs.subvolume("snap").tree.blocks())
print("right" if same and count_shared(fs, "", "snap") == len(
    {b.logical for b in fs.subvolume("").tree.blocks()}
    & {b.logical for b in fs.subvolume("snap").tree.blocks()}
) else "not yet")  # fmt: skip

# %% [markdown]
# **Exercise 2.** Make the two share nothing but what they must: change every file of the top, and
# let `left()` return how many blocks are still shared after a `sync`.
#
# <details><summary>A solution</summary>
#
# ```python
# def left():
#     for number in range(60):
#         fs.chmod(f"file{number:02}", 0o640)
#     fs.sync()
#     return count_shared(fs, "", "snap")
# ```
#
# Leaves that hold only names of the directory did not change.
# </details>


# %% tags=["exercise"]
def left(): ...  # yours


# %% tags=["check"]
answer = left()
print("right" if answer is not None and answer == len(
    {b.logical for b in fs.subvolume("").tree.blocks()}
    & {b.logical for b in fs.subvolume("snap").tree.blocks()}
) < 8 else "not yet")  # fmt: skip

# %% [markdown]
# Next: [04](04-file-data.ipynb).
