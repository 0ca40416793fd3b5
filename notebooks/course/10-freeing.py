# %% [markdown]
# # 10 · Freeing
#
# You delete a file of a gigabyte, and `rm` is back at once. You delete a snapshot of a million
# files, and that is back at once, too. Who does the work, and when is the room there again?

# %%
import bisect
import pathlib
import tempfile

import btrfs_model as bm

fs = bm.create("256M", nodesize=4096, seed=1)
fs.create("old")
fs.write("old", 0, b"o" * 400_000)
fs.sync()


def place(name):
    """Where on the disk the first extent of a file lies."""
    return fs.subvolume("").extents(name)[0].disk_bytenr


# %% [markdown]
# ## What is free?
#
# The extent tree says what is taken. Free is the rest, so it could be computed; but to find room for
# a write one would have to read all of it. The **free space tree** has the gaps as items: an item
# for each run of free bytes, and no data at all.

# %%
FREE_SPACE_EXTENT = 199


def gaps(fs):
    """The runs of free bytes: start and length, in order."""
    return [
        (item.key.objectid, item.key.offset)
        for item in fs.tree(10).items()
        if item.key.type == FREE_SPACE_EXTENT
    ]


for start, length in gaps(fs):
    print(f"{start:>12,} {length:>12,}")

# %% [markdown]
# The first two rows are left over: they tell of chunks that mkfs began with, and gave up.

# %% tags=["claims", "hide-input"]
# what the text says
first = min(chunk.logical for chunk in fs.image.chunks)
assert sum(start < first for start, _ in gaps(fs)) == 2

# %% [markdown]
# **Guess:** we delete the file, and write another one as large, without a commit between. Will the
# new one lie where the old one was?

# %% tags=["hide-output"]
before = place("old")
fs.unlink("old")
fs.create("new")
fs.write("new", 0, b"n" * 400_000)
fs.sync()
print(f"old at {before:,}, new at {place('new'):,}")

# %% [markdown]
# It must not. Until the commit the superblock leads to the old tree, and a crash would bring the
# deleted file back: its bytes have to be there. What is freed in a transaction is **pinned** until it
# is committed. Now the commit is over, and the bytes of the old file are among the gaps.

# %% tags=["claims", "hide-input"]
# what the text says
assert place("new") != before
assert any(
    start <= before < start + length for start, length in gaps(fs)
)

# %% [markdown]
# ## A snapshot is deleted
#
# A snapshot of many files is a tree of many blocks, and most of them belong to the other tree, too.
# To delete it means to go through it, and to take a reference away wherever the trees part.
# So `btrfs subvolume delete` takes the name away, and no more. A thread of the kernel does the
# rest, some blocks at a time: the **cleaner**.

# %%
fs.create_files("", [f"file{number:03}" for number in range(300)])
fs.snapshot("", "snap")
for number in range(0, 300, 60):
    fs.chmod(f"file{number:03}", 0o600)
fs.sync()


def addresses(name):
    """Where the blocks of a subvolume lie."""
    blocks = fs.subvolume(name).tree.blocks()
    return {block.logical for block in blocks}


def used(fs):
    """Bytes that tree blocks and data take."""
    return fs.raw_super.bytes_used


both = [fs.subvolume(""), fs.subvolume("snap")]
bm.draw(both)

# %% [markdown]
# **Guess:** how many bytes are free again when the name is gone? And how many when the cleaner has
# been there?

# %% tags=["hide-output"]
alone = addresses("snap") - addresses("")
folder = tempfile.TemporaryDirectory()
fs.save(path := pathlib.Path(folder.name, "kept.img"))
kept = bm.open(path)
whole = used(fs)
fs.delete_subvolume("snap")
fs.sync()
named = used(fs)
fs.clean_subvolumes()
fs.sync()
cleaned = used(fs)
print("blocks that the snapshot has alone:", len(alone))
print("without its name:", whole - named, "bytes less")
print("cleaned:", named - cleaned, "bytes less")

# %% [markdown]
# The name gave back nothing, and the cleaner all blocks that the snapshot had alone. What both trees
# had stays, and has one reference less. So a snapshot that shares everything is deleted with little
# work, and gives back little; `bm.freed` tells beforehand how much.

# %% tags=["claims", "hide-input"]
# what the text says
assert whole == named
assert named - cleaned == len(alone) * 4096
assert len(alone) < len(addresses("")) / 2
assert set(bm.freed(kept, "snap")["metadata"]) == {len(alone) * 4096}

# %% [markdown]
# ## Is this what a kernel does?
#
# In an image that a kernel made, we take what the extent tree has, and compute the gaps between.
# They are the items of its free space tree.

# %%
kernel = bm.open(bm.sample("kernel/send/send-utimes/n200"))


def computed(fs):
    """The gaps between all extents, in each block group."""
    taken = sorted(
        (
            item.key.objectid,
            fs.image.nodesize
            if item.key.type == 169
            else item.key.offset,
        )
        for item in fs.tree(2).items()
        if item.key.type in (168, 169)
    )
    found = []
    for chunk in fs.image.chunks:
        at, end = chunk.logical, chunk.logical + chunk.length
        first = bisect.bisect_left(taken, (at, 0))
        for start, length in taken[first:]:
            if start >= end:
                break
            if start > at:
                found.append((at, start - at))
            at = start + length
        if at < end:
            found.append((at, end - at))
    return found


print(len(gaps(kernel)), "gaps")
assert gaps(kernel) == computed(kernel)

# %% [markdown]
# ## Exercises
#
# **Exercise 1.** How many bytes are free in the chunk that has a logical address? Let
# `free_in(fs, address)` tell, by the free space tree.
#
# <details><summary>A solution</summary>
#
# ```python
# def free_in(fs, address):
#     (chunk,) = [
#         one
#         for one in fs.image.chunks
#         if one.logical <= address < one.logical + one.length
#     ]
#     return sum(
#         length
#         for start, length in gaps(fs)
#         if chunk.logical <= start < chunk.logical + chunk.length
#     )
# ```
# </details>


# %% tags=["exercise"]
def free_in(fs, address): ...  # yours


# %% tags=["check", "hide-input"]
from btrfs_model.base.exercises import judge


@judge
def wrong():
    for files in (0, 3, 9):
        with bm.create("256M", nodesize=4096, seed=3) as one:
            for number in range(files):
                one.create(f"f{number}")
                one.write(f"f{number}", 0, b"x" * 70_000)
            one.sync()
            for number in range(0, files, 2):
                one.unlink(f"f{number}")
            one.sync()
            for chunk in one.image.chunks:
                end = chunk.logical + chunk.length
                right = sum(
                    length
                    for start, length in computed(one)
                    if chunk.logical <= start < end
                )
                said = free_in(one, end - 1)
                if said != right:
                    return f"of chunk {chunk.logical} it says {said}"
    return None


# %% [markdown]
# **Exercise 2.** Before you delete a snapshot you want to know what its tree blocks will give back.
# Let `gives_back(fs, name)` return the bytes: the blocks of the subvolume `name` that no other
# subvolume has.
#
# <details><summary>A solution</summary>
#
# ```python
# def gives_back(fs, name):
#     def blocks(one):
#         tree = fs.subvolume(one).tree
#         return {block.logical for block in tree.blocks()}
#
#     mine = fs.subvolume(name).id
#     alone = blocks(name)
#     for other in fs.subvolume_ids:
#         if other != mine:
#             alone -= blocks(other)
#     return len(alone) * fs.image.nodesize
# ```
# </details>


# %% tags=["exercise"]
def gives_back(fs, name): ...  # yours


# %% tags=["check", "hide-input"]
@judge
def wrong():
    for nodesize, changes in ((4096, 0), (4096, 40), (16384, 7)):
        with bm.create("256M", nodesize=nodesize, seed=4) as one:
            names = [f"file{number:03}" for number in range(200)]
            one.create_files("", names)
            one.snapshot("", "first")
            for name in names[:changes]:
                one.chmod(name, 0o600)
            one.snapshot("", "second")
            for name in names[100 : 100 + changes]:
                one.chmod(name, 0o600)
            one.sync()
            trees = {
                number: one.subvolume(number).tree
                for number in one.subvolume_ids
            }
            for name in ("first", "second"):
                mine = one.subvolume(name).id
                others = [
                    block.logical
                    for number, tree in trees.items()
                    for block in tree.blocks()
                    if number != mine
                ]
                right = nodesize * sum(
                    block.logical not in others
                    for block in trees[mine].blocks()
                )
                said = gives_back(one, name)
                if said != right:
                    return f"{name} gives back {right}, not {said}"
    return None


# %% [markdown]
# Next: [11](11-block-groups.ipynb).
