# %% [markdown]
# # 02 · Copy on write, and what a crash leaves
#
# A disk may lose power between any two writes. A filesystem that changes a block in place risks
# that half of it is old and half is new. btrfs never does that. What does it do, and what does it
# cost?

# %%
import btrfs_model as bm

fs = bm.create("256M", nodesize=4096, seed=1)
fs.create_files("", [f"file{number:02}" for number in range(30)])
fs.sync()
before = fs.tree(5).blocks()
steps = {"30 files": bm.draw(fs.tree(5))}
print(len(before), "tree blocks at", [block.logical for block in before])

# %% [markdown]
# ## One change
#
# We change the mode of one file: two bytes of one item in one leaf.
#
# **Guess:** how many blocks of this tree are written?

# %%
fs.chmod("file07", 0o600)
fs.sync()
after = fs.tree(5).blocks()
old = {block.logical for block in before}
for block in after:
    kind = "node" if block.level else "leaf"
    where = "where it was" if block.logical in old else "at a new address"
    print(f"{kind} {block.logical:,}: {where}")

# %% [markdown]
# The leaf was not changed where it lay: it was **copied**, and the copy was changed. But now its
# address is another, so the node above it must be changed, and is copied as well; and so on up to
# the root. This is **copy on write**: from the changed leaf to the root, each block on the way is
# written to a new place. All others stay.
#
# Here is the tree before the change and after it. Go from step to step: what is filled is new.

# %%
steps["the mode of file07 is changed"] = bm.draw(fs.tree(5))
bm.draw(steps)

# %% [markdown]
# ## Generations
#
# How do we know which blocks are new? Each block says in which **generation** it was written, and
# so does each pointer to it. The generation is a number that rises by one each time that the disk
# is brought up to date.

# %%
for block in after:
    print(f"level {block.level}, generation {block.generation}, from {block.first}")

# %% [markdown]
# ## Transactions
#
# Many changes are gathered in memory: a **transaction**. Its end is a **commit**: all new blocks
# are written to free places, the disk is told to have them safe, and only then is the superblock
# written, with the address of the new root tree. That single write makes everything valid at once.
# Before it the disk holds the old state, whole; after it the new one, whole.

# %%
print("generation of the superblock:", fs.image.superblock.generation)
fs.chmod("file01", 0o600)
print("changed, not committed:      ", fs.image.superblock.generation)
fs.sync()
print("committed:                   ", fs.image.superblock.generation)

# %% [markdown]
# ## A crash
#
# `crash()` returns the bytes of the disk as they would be after a power cut now: what the last
# commit wrote, and nothing of what waits in memory.

# %%
import pathlib
import tempfile

fs.create("new")
fs.unlink("file03")
folder = tempfile.TemporaryDirectory()
path = pathlib.Path(folder.name, "crashed.img")
path.write_bytes(fs.crash())

with bm.open(path) as crashed:
    names = {entry.name.decode() for entry in crashed.subvolume("").readdir("")}
print("new is there:", "new" in names, "; file03 is there:", "file03" in names)
print("what is wrong with the image:", bm.check(path))

# %% [markdown]
# The new file is lost and the deleted one is back: the state is that of the last commit, and
# nothing is wrong with it. No repair is needed, ever, after a power cut. (What must not be lost is
# a matter for notebook 07.)
#
# ## Is this what a kernel does?
#
# Linux 6.12 made 20 files, committed, added more and lost power. We have the disk as it was at the
# commit and as it was after the crash. Their generations must be the same.

# %%
committed = bm.open(bm.sample("kernel/log/nd/nd_20_5/6.12/committed1"))
crashed = bm.open(bm.sample("kernel/log/nd/nd_20_5/6.12/crash1"))
for name, one in (("committed", committed), ("crashed", crashed)):
    print(f"{name}: generation {one.image.superblock.generation}, findings {bm.check(one)}")

# %% [markdown]
# ## Exercises
#
# **Exercise 1.** Which part of a tree does one small change write? Let `written(before, after)`
# return how many blocks of `after` are at addresses that `before` does not have. Both are lists of
# blocks with a `logical`.
#
# <details><summary>A solution</summary>
#
# ```python
# def written(before, after):
#     old = {block.logical for block in before}
#     return sum(block.logical not in old for block in after)
# ```
# </details>


# %% tags=["exercise"]
def written(before, after): ...  # yours


# %% tags=["check"]
print("right" if written(before, after) == 2 else "not yet")

# %% [markdown]
# **Exercise 2.** A commit costs at least one new leaf for each tree that changes. Let `trees()`
# return the names of the trees with a new root after `chmod` and `sync`: compare
# `{number: tree.bytenr for number, tree in fs.trees.items()}` before and after, and count.
#
# <details><summary>A solution</summary>
#
# ```python
# def trees():
#     before = {number: tree.bytenr for number, tree in fs.trees.items()}
#     fs.chmod("file02", 0o640)
#     fs.sync()
#     after = {number: tree.bytenr for number, tree in fs.trees.items()}
#     return sum(before[number] != after[number] for number in after)
# ```
#
# Four: the files; the tree that says which extents are used, as new blocks take room; the tree
# of free space, for the same reason; and the root tree, which has the new addresses.
# </details>


# %% tags=["exercise"]
def trees(): ...  # yours


# %% tags=["check"]
print("right" if trees() == 4 else "not yet")

# %% [markdown]
# Next: [03](03-snapshots.ipynb).
