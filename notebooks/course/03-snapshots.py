# %% [markdown]
# # 03 · Snapshots, and who owns a block
#
# To copy a terabyte of files takes hours. btrfs can copy a whole tree of files in a moment, and at
# first the copy takes the room of a few tree blocks. How can that be?

# %%
import btrfs_model as bm

fs = bm.create("256M", nodesize=4096, seed=1)
fs.create_files("", [f"file{number:02}" for number in range(60)])
fs.sync()


def addresses(name):
    """Where the blocks of a subvolume lie."""
    blocks = fs.subvolume(name).tree.blocks()
    return {block.logical for block in blocks}


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
both = [fs.subvolume(""), fs.subvolume("snap")]
steps["a snapshot"] = bm.draw(both)
bm.draw(steps)

# %% [markdown]
# Boxes in the colour of text belong to both trees. The two first leaves of each differ for a
# reason: the snapshot was given the name `snap` in the top directory, after it was taken. A
# snapshot does not contain itself.

# %% tags=["claims", "hide-input"]
# what the text says: the roots differ, and two leaves
shared = addresses("") & addresses("snap")
firsts = [b for b in fs.subvolume("").tree.blocks() if b.level == 0][
    :2
]
assert addresses("") - shared == {
    fs.subvolume("").tree.bytenr, *(block.logical for block in firsts)
}  # fmt: skip
assert "snap" in {
    e.name.decode() for e in fs.subvolume("").readdir("")
}
assert "snap" not in {
    e.name.decode() for e in fs.subvolume("snap").readdir("")
}

# %% [markdown]
# **Guess:** now we change one file in the top. Which blocks will be shared no more?

# %% tags=["hide-output"]
fs.chmod("file40", 0o600)
fs.sync()
both = [fs.subvolume(""), fs.subvolume("snap")]
steps["file40 is changed in the top"] = bm.draw(both)
bm.draw(steps)

# %% [markdown]
# Of the leaves that were shared one was copied, and belongs to the top alone now. The snapshot
# still has the old one. Both share what neither has changed since. So a snapshot costs a few blocks
# when it is taken; it costs more later, as the two grow apart.

# %% tags=["claims", "hide-input"]
# what the text says
(parted,) = shared - addresses("")
assert shared - addresses("snap") == set()
assert any(
    block.logical == parted and block.level == 0
    for block in fs.subvolume("snap").tree.blocks()
)

# %% [markdown]
# ## Who may free a block?
#
# When a file is deleted from the top, a block that the snapshot has as well must stay. So for each
# block there is a count of those who refer to it, in the **extent tree**. Let us look it up for a
# block that is shared and for one that is not.

# %%
import struct

blocks = {
    block.logical: block
    for name in ("", "snap")
    for block in fs.subvolume(name).tree.blocks()
}
shared = addresses("") & addresses("snap")
alone = addresses("") - shared


def references(logical, level):
    """The count of references in the extent tree."""
    item = fs.tree(2).get((logical, 169, level))  # 169: METADATA_ITEM
    return struct.unpack_from("<Q", item.data)[0]


for logical in (min(shared), max(alone)):
    count = references(logical, blocks[logical].level)
    print(f"{logical:,}: references {count}")

# %% [markdown]
# Why is that enough? A reference counts a *pointer*, not a tree. Where a whole node is shared, what
# is below it is pointed at by that one node, and counts one, however many trees come by. Its
# children have one reference more when the node itself is copied, and not before. So of the tree that
# it copies, a snapshot of very many files changes no more counts than the new root has pointers. (Its
# name is put into a directory, and that copies a few blocks as any change does.)

# %%
for block in fs.subvolume("snap").tree.blocks():
    count = references(block.logical, block.level)
    print(
        f"level {block.level}, {block.logical:,}: references {count}"
    )

# %% tags=["claims", "hide-input"]
# what the text says
for logical, block in blocks.items():
    count = references(logical, block.level)
    assert count == (2 if logical in shared else 1)
with bm.create("1G", nodesize=4096, seed=1) as large:
    large.mkdir("d")
    large.create_files(
        "d", [f"file{number}" for number in range(20_000)]
    )
    large.snapshot("", "one")
    large.sync()
    one = large.subvolume("one").tree
    blocks_of_one = one.blocks()
    counts = []
    for name in ("two", "three"):
        counts.append(
            {
                item.key.objectid: bytes(item.data)[:8]
                for item in large.tree(2).items()
                if item.key.type == 169
            }
        )
        large.snapshot("one", name)
        large.sync()
    changed = sum(
        counts[1][block.logical] != counts[0][block.logical]
        for block in blocks_of_one
        if block.parent  # the root of the source is copied, too
    )
    pointers = sum(
        block.parent == one.bytenr for block in blocks_of_one
    )
    print(
        f"{len(blocks_of_one):,} blocks:",
        changed,
        "counts have changed",
    )
    assert one.level == 2 and changed == pointers

# %% [markdown]
# ## How much is whose
#
# What would be free if a snapshot were deleted? What it has alone, and no more. `bm.du` counts that,
# as `btrfs filesystem du` does (in `exclusive`) and as the disk has it (in `extent_exclusive`).

# %%
fs.create("data")
fs.write("data", 0, b"d" * 300_000)
fs.sync()
fs.snapshot("", "second")
fs.write("data", 0, b"e" * 100_000)
fs.sync()
owned = bm.du(fs, "", "second")
owned[
    ["path", "total", "exclusive", "set_shared", "extent_exclusive"]
]

# %% [markdown]
# The column `extent_exclusive` has the file data that would be free. Here `exclusive` says the same:
# it counts bytes of files that nothing else shows. The two differ where two files of one subvolume
# share an extent, which would be free and is nobody's alone; and where data are compressed, as the
# next notebook shows. The snapshot `second` shows the old bytes, which the top has written over in
# part; yet nothing of them is its alone, since the top shows the rest of the same extent.

# %% tags=["claims", "hide-input"]
# what the text says
assert list(owned["exclusive"]) == [102_400, 0]
assert list(owned["extent_exclusive"]) == [102_400, 0]
with bm.create("256M", seed=1) as one:
    one.create_subvolume("sub")
    one.create("sub/a")
    one.write("sub/a", 0, b"d" * 8192)
    one.create("sub/b")
    one.clone_range("sub/a", "sub/b", 0, 0, 8192)
    one.sync()
    (of_sub,) = bm.du(one, "sub").to_dict("records")
assert (of_sub["exclusive"], of_sub["extent_exclusive"]) == (0, 8192)
assert fs.subvolume("second").extents("data")[0].disk_bytenr in {
    extent.disk_bytenr for extent in fs.subvolume("").extents("data")
}

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
        new = (block.level, set())
        parents = seen.setdefault(block.logical, new)[1]
        parents.add(block.parent or -number)
compared = 0
for logical, (level, parents) in seen.items():
    item = kernel.tree(2).get((logical, 169, level))
    if item is not None:
        (count,) = struct.unpack_from("<Q", item.data)
        assert count == len(parents)
        compared += 1
print(
    compared, "tree blocks: each count is that of the pointers to it"
)

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
#         {block.logical for block in fs.subvolume(name).tree.blocks()}
#         for name in (one, other)
#     )
#     return len(first & second)
# ```
# </details>


# %% tags=["exercise"]
def count_shared(fs, one, other): ...  # yours


# %% tags=["check", "hide-input"]
from btrfs_model.base.exercises import judge


def grown(files):
    """A filesystem with so many files, and a snapshot of them."""
    fs = bm.create("256M", nodesize=4096, seed=2)
    names = [f"file{number:03}" for number in range(files)]
    fs.create_files("", names)
    fs.snapshot("", "snap")
    fs.create_subvolume("other")
    fs.sync()
    return fs, names


def in_both(fs, one, other):
    """How many blocks of one tree are in another, one by one."""
    there = [
        block.logical for block in fs.subvolume(other).tree.blocks()
    ]
    mine = [
        block.logical for block in fs.subvolume(one).tree.blocks()
    ]
    return sum(logical in there for logical in mine)


@judge
def wrong():
    for files in (60, 200):
        one, _ = grown(files)
        with one:
            for pair in (
                ("", "snap"),
                ("snap", "snap"),
                ("", "other"),
            ):
                if (said := count_shared(one, *pair)) != in_both(
                    one, *pair
                ):
                    what = f"{pair} of other {files} files"
                    return f"for {what} it returns {said}"
    return None


# %% [markdown]
# **Exercise 2.** How long does a snapshot share anything? Let `left(fs, names)` change each of the
# files `names` in the top by a `chmod`, `fs.sync()`, and return how many blocks the top and the
# snapshot `snap` still share.
#
# <details><summary>A solution</summary>
#
# ```python
# def left(fs, names):
#     for name in names:
#         fs.chmod(name, 0o600)
#     fs.sync()
#     return count_shared(fs, "", "snap")
# ```
#
# Every leaf with an inode that has changed is copied. Some leaves of a large directory have names
# and no inodes: they are shared still.
# </details>


# %% tags=["exercise"]
def left(fs, names): ...  # yours


# %% tags=["check", "hide-input"]
@judge
def wrong():
    for files, change in ((60, 60), (60, 1), (200, 200), (200, 30)):
        one, names = grown(files)
        with one:
            some = names[-change:]
            modes = [
                one.subvolume("").inode(name).mode for name in some
            ]
            said = left(one, some)
            top, snap = one.subvolume(""), one.subvolume("snap")
            for name, mode in zip(some, modes, strict=True):
                if top.inode(name).mode == mode:
                    return f"{name} of the top is unchanged (synced?)"
                if snap.inode(name).mode != mode:
                    return f"{name} of the snapshot has changed"
            if said != in_both(one, "", "snap"):
                what = f"after a change of {change} of {files} files"
                return f"{what} it returns {said}"
    return None


# %% [markdown]
# Next: [04](04-file-data.ipynb).
