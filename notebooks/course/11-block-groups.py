# %% [markdown]
# # 11 · Block groups, a full disk, and balance
#
# `df` says that a third of the disk is free. Yet `touch` ends in "No space left on device". Users of
# btrfs have met this for years. What is free, and for whom?

# %%
import btrfs_model as bm

fs = bm.create("256M", nodesize=4096, seed=1)

# %% [markdown]
# ## Two steps
#
# Room is given out in two steps. A write takes it from a **block group**: a chunk together with the
# count of what is taken in it. There are block groups for data, for metadata (tree blocks) and for
# the system (the chunk tree), and what is in a group is of its kind. Where all groups of a kind are
# full, a new one is cut from what is **unallocated**: bytes of the disk that no chunk has. A group
# keeps its kind, and its place, until it is empty or somebody moves what is in it.

# %%
KINDS = {1: "data", 2: "system", 4: "metadata"}


def groups(fs):
    """Of each block group: address, kind, bytes, bytes taken."""
    found = []
    for item in fs.tree(2).items():
        if item.key.type == 192:  # BLOCK_GROUP_ITEM
            start, _, length = item.key
            taken = int.from_bytes(item.data[:8], "little")
            kind = KINDS[item.data[16] & 7]
            found.append((start, kind, length, taken))
    return found


def show(fs):
    """Print the groups and what is left."""
    for _, kind, length, taken in groups(fs):
        full = 100 * taken / length
        print(f"{kind:9}{length >> 20:5} MiB {full:5.1f} % taken")
    left = fs.devices()["unallocated"].sum()
    print(f"unallocated {left >> 20} MiB")


show(fs)

# %% [markdown]
# mkfs made a group of each kind. (Each block of metadata and of the system is there twice; a byte of
# their groups takes two of the disk.)

# %% tags=["claims", "hide-input"]
# what the text says
assert [kind for _, kind, _, _ in groups(fs)] == [
    "data",
    "system",
    "metadata",
]
whole = fs.image.superblock.total_bytes
left = int(fs.devices()["unallocated"].sum())
assert (
    whole
    - left
    - sum(
        length if kind == "data" else 2 * length
        for _, kind, length, _ in groups(fs)
    )
    <= 2 << 20
)

# %% [markdown]
# **Guess:** we write many files of a mebibyte, then delete most of them. How much is unallocated
# then?

# %% tags=["hide-output"]
names = [f"file{number:03}" for number in range(150)]
for name in names:
    fs.create(name)
    fs.write(name, 0, name.encode() * (1 << 17))
fs.sync()
print("written:")
show(fs)
for number, name in enumerate(names):
    if number % 10:
        fs.unlink(name)
fs.sync()
print("most deleted:")
show(fs)

# %% [markdown]
# As little as before. Most groups of data are nearly empty, and not one is empty: each has a file
# left. All of that is free for data; nothing of it is free for metadata.

# %% tags=["claims", "hide-input"]
# what the text says
data = [one for one in groups(fs) if one[1] == "data"]
assert len(data) > 2
assert all(taken > 0 for _, _, _, taken in data)
assert sum(taken for _, _, _, taken in data) < 0.25 * sum(
    length for _, _, length, _ in data
)

# %% [markdown]
# ## Full
#
# So we need metadata: many small files, whose bytes lie inline in the tree. We make them in a copy
# of the disk, until there is no room.

# %%
import pathlib
import tempfile

folder = tempfile.TemporaryDirectory()
path = pathlib.Path(folder.name, "disk.img")
fs.save(path)


def small_files(path):
    """How many small files fit, and what is free for data then."""
    made = 0
    with bm.load(path) as copy:
        try:
            while True:
                copy.create(f"small{made}")
                copy.write(f"small{made}", 0, b"s" * 2000)
                made += 1
        except OSError as error:
            free = sum(
                length - taken
                for _, kind, length, taken in groups(copy)
                if kind == "data"
            )
            print(f"{made:,} files, then: {error.strerror}")
            print(f"free in groups of data: {free >> 20} MiB")
    return made, free


before, free = small_files(path)

# %% tags=["claims", "hide-input"]
# much is free, and a small file has no room
assert before > 1000 and free > 60 << 20

# %% [markdown]
# ## Balance
#
# The way out: move what is in nearly empty groups to others, and give the groups back. That is a
# **balance**: it takes one group after the other, copies what is in it to elsewhere, as any write
# would, lets all who refer to it refer to the new place, and removes the group. With
# `btrfs balance start -dusage=50` it takes groups of data of which less than half is taken. What
# would it come to? `bm.balance_plan` carries it out in memory.

# %%
plan = bm.balance_plan(path, data="usage=50")
plan.table

# %% [markdown]
# **Guess:** how many bytes have to be copied, for how many that are unallocated afterwards?

# %% tags=["hide-output"]
gained = plan.unallocated_after - plan.unallocated_before
print(f"{plan.data >> 20} MiB are copied")
print(f"{gained >> 20} MiB more are unallocated")
moved = fs.balance(data="usage=50")
show(fs)

# %% [markdown]
# A few are copied, and many are gained. Now groups of metadata can be cut from that.

# %%
fs.save(path)
after, _ = small_files(path)

# %% [markdown]
# The fuller the groups, the worse the bargain: so one begins with a low `usage`, and a balance of
# everything is seldom worth it. It also needs room to begin with. A disk that is full to the last
# block has none: there one deletes something first, or lends it another disk for a while.

# %% tags=["claims", "hide-input"]
# what the text says
assert moved.completed == plan.table["moved"].sum() > 1
assert gained > 3 * plan.data > 0
assert after > 1.5 * before
assert not bm.check(path)

# %% [markdown]
# ## Is this what a kernel does?
#
# In an image that a kernel made, the count of the group of data is the sum of the extents in it.

# %%
kernel = bm.open(bm.sample("kernel/features/dup"))
for _, kind, length, taken in groups(kernel):
    print(f"{kind:9}{length >> 20:5} MiB {taken:>10,} bytes taken")
extents = sum(
    item.key.offset
    for item in kernel.tree(2).items()
    if item.key.type == 168
)
(data,) = [one for one in groups(kernel) if one[1] == "data"]
assert data[3] == extents

# %% [markdown]
# ## Exercises
#
# **Exercise 1.** Which groups would `-dusage=N` take? Let `chosen(fs, usage)` return the addresses
# of the groups of data of which at most `usage` percent are taken, in the order of addresses.
#
# <details><summary>A solution</summary>
#
# ```python
# def chosen(fs, usage):
#     return sorted(
#         start
#         for start, kind, length, taken in groups(fs)
#         if kind == "data" and 100 * taken <= usage * length
#     )
# ```
#
# The kernel takes what is *below* the limit: a group that is half full to the byte stays with
# `usage=50`.
# </details>


# %% tags=["exercise"]
def chosen(fs, usage): ...  # yours


# %% tags=["check", "hide-input"]
from btrfs_model.base.exercises import judge


@judge
def wrong():
    for usage in (0, 5, 30, 90, 100):
        for one in (fs, kernel):
            right = []
            for start, kind, length, taken in groups(one):
                if kind == "data" and taken / length <= usage / 100:
                    right.append(start)
            said = chosen(one, usage)
            if said != sorted(right):
                return f"with usage {usage} it takes {said}"
    return None


# %% [markdown]
# **Exercise 2.** How much of the disk is there for metadata at most? Let `for_metadata(fs)` return the
# bytes: what is not taken in groups of metadata, and what is unallocated, of which a byte of
# metadata takes two.
#
# <details><summary>A solution</summary>
#
# ```python
# def for_metadata(fs):
#     inside = sum(
#         length - taken
#         for _, kind, length, taken in groups(fs)
#         if kind == "metadata"
#     )
#     return inside + int(fs.devices()["unallocated"].sum()) // 2
# ```
# </details>


# %% tags=["exercise"]
def for_metadata(fs): ...  # yours


# %% tags=["check", "hide-input"]
@judge
def wrong():
    for size, files in (("256M", 0), ("256M", 400), ("512M", 90)):
        with bm.create(size, nodesize=4096, seed=5) as one:
            one.create_files("", [f"f{n}" for n in range(files)])
            one.sync()
            whole = one.image.superblock.total_bytes
            left = 0
            for _, kind, length, taken in groups(one):
                whole -= length if kind == "data" else 2 * length
                if kind == "metadata":
                    left += length - taken
            said = for_metadata(one)
            if said != left + whole // 2:
                what = f"{size} with {files} files"
                return f"of {what} it returns {said}"
    return None


# %% [markdown]
# Next: [12](12-copies.ipynb).
