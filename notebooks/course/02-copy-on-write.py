# %% [markdown]
# # 02 · Copy on write, and what a crash leaves
#
# A disk may lose power between any two writes. A filesystem that changes a block in place risks
# that half of it is old and half is new. btrfs changes no tree block in place. What does it do, and
# what does it cost?

# %%
import btrfs_model as bm

fs = bm.create("256M", nodesize=4096, seed=1)
fs.create_files("", [f"file{number:02}" for number in range(30)])
fs.sync()
before = fs.tree(5).blocks()
items = {item.key: bytes(item.data) for item in fs.tree(5).items()}
steps = {"30 files": bm.draw(fs.tree(5))}
print(
    len(before), "tree blocks at", [block.logical for block in before]
)

# %% [markdown]
# ## One change
#
# We change the mode of one file: a few fields of one item in one leaf.
#
# **Guess:** how many blocks of this tree are written?

# %% tags=["hide-output"]
fs.chmod("file07", 0o600)
fs.sync()
after = fs.tree(5).blocks()
old = {block.logical for block in before}
for block in after:
    kind = "node" if block.level else "leaf"
    is_old = block.logical in old
    where = "where it was" if is_old else "at a new address"
    print(f"{kind} {block.logical:,}: {where}")

# %% [markdown]
# The leaf was not changed where it lay: it was **copied**, and the copy was changed. But now its
# address is another, so the node above it must be changed, and is copied as well; and so on up to
# the root. This is **copy on write**: from the changed leaf to the root, each block on the way is
# written to a new place. All others stay.
#
# In the item four fields have changed: the mode; the time of the last change of the inode; and two
# numbers that rise: `sequence` with each change of the inode, `transid` as the next section tells.

# %%
INODE_ITEM = {
    "generation": (0, 8), "transid": (8, 8), "size": (16, 8),
    "nbytes": (24, 8), "block_group": (32, 8), "nlink": (40, 4),
    "uid": (44, 4), "gid": (48, 4), "mode": (52, 4), "rdev": (56, 8),
    "flags": (64, 8), "sequence": (72, 8), "atime": (112, 12),
    "ctime": (124, 12), "mtime": (136, 12), "otime": (148, 12),
}  # fmt: skip
changed = {}
for item in fs.tree(5).items():
    new, was = bytes(item.data), items[item.key]
    if new != was:
        changed[str(item.key)] = [
            name
            for name, (at, size) in INODE_ITEM.items()
            if new[at : at + size] != was[at : at + size]
        ]
print(changed)

# %% tags=["claims", "hide-input"]
# what the text says
((key, fields),) = changed.items()
assert "INODE_ITEM" in key
assert fields == ["transid", "mode", "sequence", "ctime"]
assert sum(block.logical not in old for block in after) == 2

# %% [markdown]
# Here is the tree before the change and after it. Go from step to step: what is filled is new.

# %%
steps["the mode of file07 is changed"] = bm.draw(fs.tree(5))
bm.draw(steps)

# %% [markdown]
# ## Generations
#
# How do we know which blocks are new? Each block says in which **generation** it was written, and
# so does each pointer to it. The generation is a number that rises by one each time that all changes
# are brought to the disk.

# %%
for block in after:
    print(
        f"level {block.level}, generation {block.generation},",
        f"from {block.first}",
    )

# %% [markdown]
# ## Transactions
#
# Many changes are gathered in memory: a **transaction**. Its end is a **commit**: all new blocks
# are written to free places, the disk is told to have them safe, and only then is the superblock
# written, with the address of the new root tree. That single write makes everything valid at once.
# Before it the disk holds the old state, whole; after it the new one, whole. The superblock is what
# is written in place: one sector, in which it can be seen whether it is whole. Its copies are written
# then, too.
#
# (Programmers call something else a commit, too: a change of the kernel's source. Here that is a
# **patch**, and a commit is the end of a transaction.)


# %%
def generation():
    return fs.image.superblock.generation


generations = [generation()]
print("generation of the superblock:", generation())
fs.chmod("file01", 0o600)
generations.append(generation())
print("changed, not committed:      ", generation())
fs.sync()
generations.append(generation())
print("committed:                   ", generation())
first = generations[0]
assert generations == [first, first, first + 1]

# %% [markdown]
# ## A crash
#
# `save_crash()` saves the disk as it would be after a power cut now: what the last
# commit wrote, and nothing of what waits in memory.

# %%
import pathlib
import tempfile

fs.create("new")
fs.unlink("file03")
folder = tempfile.TemporaryDirectory()
path = pathlib.Path(folder.name, "crashed.img")
fs.save_crash(path)

with bm.open(path) as crashed:
    names = {
        entry.name.decode()
        for entry in crashed.subvolume("").readdir("")
    }
print("new is there:", "new" in names)
print("file03 is there:", "file03" in names)
findings = bm.check(path)
print("what is wrong with the image:", findings)
assert "new" not in names and "file03" in names and not findings

# %% [markdown]
# The new file is lost and the deleted one is back: the state is that of the last commit, and
# nothing is wrong with it. So no repair is needed after a power cut, on one condition: the disk has
# to do what it says. When it reports a block as safe that is still in its memory, the superblock
# may come first, and lead to blocks that are not there. (What must not be lost is a matter for
# notebook 07.)
#
# Bytes of files are copied on write as well, as notebook 04 shows, except where somebody has asked
# for the opposite: the mount option `nodatacow`, or the flag that `chattr +C` gives an empty file.
# Such a file is written in place, as long as nothing else shows the same bytes. It has nothing that
# tells wrong bytes, and may be half old and half new after a crash.

# %%
NOCOW = 0x800000  # the flag that chattr calls C
with bm.create("256M", seed=1) as one:
    places = {}
    for name, flags in (("usual", 0), ("in place", NOCOW)):
        one.create(name)
        if flags:
            one.chattr(name, flags)
        places[name] = []
        for text in (b"o" * 8192, b"n" * 8192):
            one.write(name, 0, text)
            one.sync()
            (extent,) = one.subvolume("").extents(name)
            places[name].append(extent.disk_bytenr)
    one.snapshot("", "other")  # shows the same bytes, from now on
    one.write("in place", 0, b"t" * 8192)
    one.sync()
    (extent,) = one.subvolume("").extents("in place")
print(places)
assert extent.disk_bytenr not in places["in place"]
assert len(set(places["usual"])) == 2
assert len(set(places["in place"])) == 1

# %% [markdown]
# ## Is this what a kernel does?
#
# Linux 6.12 committed, made a directory of 20 files, and lost power before the next commit. (In
# between came an `fsync`, which wrote beside the trees: notebook 07.) We have the disk as it was at
# the commit and as it was after the crash. Their trees must be the same.

# %%
committed = bm.open(
    bm.sample("kernel/log/nd/nd_20_5/6.12/committed1")
)
crashed = bm.open(bm.sample("kernel/log/nd/nd_20_5/6.12/crash1"))
for name, one in (("committed", committed), ("crashed", crashed)):
    number = one.image.superblock.generation
    print(f"{name}: generation {number}, findings {bm.check(one)}")
    assert number == committed.image.superblock.generation
    for tree in committed.trees:
        assert one.tree(tree).bytenr == committed.tree(tree).bytenr
assert crashed.log_trees and not committed.log_trees

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


# %% tags=["check", "hide-input"]
from btrfs_model.base.exercises import judge


@judge
def wrong():
    with bm.create("256M", nodesize=4096, seed=2) as one:
        one.create_files(
            "", [f"file{number:04}" for number in range(2000)]
        )
        one.sync()
        for changes in (
            [],
            [7],
            [7, 8],
            [7, 1900],
            [7, 500, 900, 1900],
        ):
            before = one.tree(5).blocks()
            for number in changes:
                one.chmod(f"file{number:04}", 0o600 + len(changes))
            one.sync()
            after = one.tree(5).blocks()
            newest = max(block.generation for block in after)
            right = sum(block.generation == newest for block in after)
            said = written(before, after)
            if said != (right if changes else 0):
                return (
                    f"after {len(changes)} changes it returns {said}"
                )
    return None


# %% [markdown]
# **Exercise 2.** A commit costs at least one new leaf for each tree that changes. Which trees are
# that? Let `trees(fs, change)` call `change()` and `fs.sync()`, and return the set of the numbers
# of the trees whose root lies elsewhere then: compare `{number: tree.bytenr for number, tree in
# fs.trees.items()}` before and after.
#
# <details><summary>A solution</summary>
#
# ```python
# def trees(fs, change):
#     before = {number: tree.bytenr for number, tree in fs.trees.items()}
#     change()
#     fs.sync()
#     after = {number: tree.bytenr for number, tree in fs.trees.items()}
#     return {number for number in after if before.get(number) != after[number]}
# ```
#
# For a `chmod` they are four: 5, the files; 2, the tree that says which extents are used, as new
# blocks take room; 10, the tree of free space, for the same reason; and 1, the root tree, which has
# the new addresses. Bytes of a file that are not inline need a fifth, 7: notebook 04 says why.
# </details>


# %% tags=["exercise"]
def trees(fs, change): ...  # yours


# %% tags=["check", "hide-input"]
@judge
def wrong():
    with bm.create("256M", seed=2) as one:
        one.create("f")
        one.sync()
        for what, change, right in (
            ("chmod", lambda: one.chmod("f", 0o600), {1, 2, 5, 10}),
            (
                "write",
                lambda: one.write("f", 0, b"w" * 9000),
                {1, 2, 5, 7, 10},
            ),
            ("nothing", lambda: None, set()),
        ):
            generation = one.image.superblock.generation
            if (said := trees(one, change)) != right:
                return f"for {what} it returns {said}"
            if (
                right
                and one.image.superblock.generation == generation
            ):
                return f"nothing was committed after {what}"
    return None


# %% [markdown]
# Next: [03](03-snapshots.ipynb).
