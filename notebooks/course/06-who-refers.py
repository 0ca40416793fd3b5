# %% [markdown]
# # 06 · Back references and FIEMAP
#
# A file knows its extents. But does an extent know its files? When a disk has a bad sector, when a
# snapshot is deleted, when somebody asks what is shared: the question goes backwards.

# %%
import btrfs_model as bm

fs = bm.create("1G", nodesize=4096, seed=1)
fs.create_subvolume("sub")
fs.create_files("sub", [f"file{number:02}" for number in range(60)])
fs.create("sub/first")
fs.write("sub/first", 0, b"1" * 131_072)
fs.create("sub/second")
fs.clone_range("sub/first", "sub/second", 0, 0, 131_072)
fs.sync()
(extent,) = fs.subvolume("sub").extents("first")
print("both files show the extent at", f"{extent.disk_bytenr:,}")

# %% [markdown]
# `clone_range` copied no data: the second file shows the same extent (a **reflink**, as `cp
# --reflink` makes it).
#
# ## The record of an extent
#
# For each extent the extent tree has an item with a count of references, and behind it the
# references themselves: the **back references**. One of ours says: subvolume 256, inode 317, at the
# file's byte 0.


# %%
def counted():
    """References that are counted, and files that show it."""
    row = bm.extents(fs, "sub", "first").iloc[0]
    return int(row["refs"]), int(row["references"])


print("references counted, files that show it:", counted())

# %% tags=["claims", "hide-input"]
# what the text says
here = bm.extent_references(fs, "sub", "first")
columns = ["root", "inode", "offset"]
assert (256, 317, 0) in set(here[columns].itertuples(index=False))

# %% [markdown]
# **Guess:** we take a snapshot of the subvolume. How many references are counted then, and how many
# files show the extent?

# %% tags=["hide-output"]
was = counted()
fs.snapshot("sub", "snap")
fs.sync()
now = counted()
print("references counted, files that show it:", now)

# %% [markdown]
# As many references as before, but twice the files. The snapshot shares the leaf that points at the
# extent, and for that leaf a reference is counted already. Who wants to know all files has to walk:
# from the extent to the leaf, from the leaf to the nodes above it, from these to the roots. This is
# the **backref walk**.

# %% tags=["claims", "hide-input"]
# what the text says
assert now == (was[0], 2 * was[1]) == (2, 4)

# %%
with bm.counting() as work:
    found = bm.logical_ino(fs, extent.disk_bytenr)
searches = work["btrfs_search_slot"] + work["btrfs_search_old_slot"]
print("searches:", searches)
assert sorted(found["root"].value_counts()) == [2, 2]
found

# %% [markdown]
# Two files in each of the two trees. The searches are what it took, in the extent tree and from
# each root.
#
# ## FIEMAP
#
# `FIEMAP` is the call by which programs ask where a file's extents lie. For each it also says
# whether it is shared with anybody. `filefrag` asks it, and so does `btrfs filesystem du`. (The
# plain `du` counts blocks that the inode says it has, shared or not; and `cp` asks where the data
# are by seeking in the file.) To say *shared*, FIEMAP has to walk, too. Flag `0x2000` means shared.

# %%
with bm.counting() as work:
    table = bm.fiemap(fs, "sub", "first")
shared = [bool(flags & 0x2000) for flags in table["flags"]]
print("shared:", shared)
print("searches:", work["btrfs_search_slot"])
assert shared == [True]

# %% [markdown]
# ## What a write does to it
#
# The subvolume writes to one file. Now its leaf is copied. Each of the two leaves refers to the
# extent, and the extent tree must know both.

# %%
fs.write("sub/second", 0, b"2" * 4096)
fs.sync()
print("references counted, files that show it:", counted())
answers = {}
for name in ("sub", "snap"):
    for path in ("first", "second"):
        flags = bm.fiemap(fs, name, path)["flags"]
        answers[name, path] = [bool(flag & 0x2000) for flag in flags]
        print(name, path, "shared:", answers[name, path])

# %% [markdown]
# The new 4096 bytes belong to one file alone. All else is shared still.

# %% tags=["claims", "hide-input"]
# what the text says
assert counted() == (4, 4)
assert answers.pop(("sub", "second")) == [False, True]
assert all(shared == [True] for shared in answers.values())
(extent, _) = fs.subvolume("sub").extents("second")
assert extent.length == 4096

# %% [markdown]
# ## Is this what a kernel does?
#
# In this image of a kernel, half of a file was written again after a snapshot. We compute who
# shares each extent the slow way, by looking at every file of every tree, and compare with what the
# walk says.

# %%
kernel = bm.open(bm.sample("kernel/counts/W3/half200"))
users = {}
for number in kernel.subvolume_ids:
    subvolume = kernel.subvolume(number)
    for row in subvolume.tree.items():
        # EXTENT_DATA, not inline
        if row.key.type == 108 and row.data[20] == 1:
            address = int.from_bytes(row.data[21:29], "little")
            user = (number, row.key.objectid)
            users.setdefault(address, set()).add(user)
top = kernel.subvolume("")
file = next(e.name for e in top.readdir("") if e.location.type == 1)
table = bm.fiemap(kernel, "", file)
by_walk = [bool(flags & 0x2000) for flags in table["flags"]]
by_look = [len(users[e.disk_bytenr]) > 1 for e in top.extents(file)]
print(sum(by_walk), "of", len(by_walk), "extents are shared")
print("the same by both:", by_walk == by_look)
assert by_walk == by_look and sum(by_walk) == len(by_walk) // 2

# %% [markdown]
# ## What would be free?
#
# Who refers to an extent decides what can be given back. When the whole file is written anew, the
# extents that it alone refers to are freed. What the snapshot refers to stays, and the same data lie
# on disk twice.

# %%
row = bm.waste(kernel, "", file).iloc[0]
print(row["disk"], "bytes on disk")
print(row["frees"], "of them would be free")
print(row["unshares"], "would lie there twice")
alone = sum(
    extent.disk_num_bytes
    for extent in top.extents(file)
    if len(users[extent.disk_bytenr]) == 1
)
assert row["frees"] == alone
assert row["frees"] + row["unshares"] == row["disk"]

# %% [markdown]
# ## Exercises
#
# **Exercise 1.** Let `owners(fs, name, path)` return how many files, in all subvolumes, show the
# first extent of the file `path` in the subvolume `name`: with `extents` and `bm.logical_ino`.
#
# <details><summary>A solution</summary>
#
# ```python
# def owners(fs, name, path):
#     extent = fs.subvolume(name).extents(path)[0]
#     return len(bm.logical_ino(fs, extent.disk_bytenr))
# ```
# </details>


# %% tags=["exercise"]
def owners(fs, name, path): ...  # yours


# %% tags=["check", "hide-input"]
from btrfs_model.base.exercises import judge


@judge
def wrong():
    for clones, snapshots in ((0, 0), (2, 0), (0, 1), (1, 3)):
        with bm.create("256M", seed=2) as one:
            one.create_subvolume("s")
            one.create("s/f")
            one.write("s/f", 0, b"f" * 8192)
            for number in range(clones):
                one.create(f"s/clone{number}")
                one.clone_range("s/f", f"s/clone{number}", 0, 0, 8192)
            for number in range(snapshots):
                one.snapshot("s", f"snap{number}")
            one.sync()
            right = (1 + clones) * (1 + snapshots)
            if (said := owners(one, "s", "f")) != right:
                what = f"with {clones} clones, {snapshots} snapshots"
                return f"{what} it returns {said}"
    return None


# %% [markdown]
# **Exercise 2.** Make an extent that is shared within one file: let `twice(fs, path, size)` make a
# file of twice that size in which the first and the second half show the same extent.
#
# <details><summary>A solution</summary>
#
# ```python
# def twice(fs, path, size):
#     fs.create(path)
#     fs.write(path, 0, b"s" * size)
#     fs.clone_range(path, path, 0, size, size)
#     fs.sync()
# ```
# </details>


# %% tags=["exercise"]
def twice(fs, path, size): ...  # yours


# %% tags=["check", "hide-input"]
@judge
def wrong():
    for size in (4096, 65_536):
        with bm.create("256M", seed=2) as one:
            twice(one, "same", size)
            top = one.subvolume("")
            if b"same" not in {
                entry.name for entry in top.readdir("")
            }:
                return "there is no such file (was it synced?)"
            if (has := top.inode("same").size) != 2 * size:
                return f"asked for {size}, the file has {has} bytes"
            extents = top.extents("same")
            if [e.start for e in extents] != [0, size]:
                return (
                    f"its items begin at {[e.start for e in extents]}"
                )
            if len({e.disk_bytenr for e in extents}) != 1:
                return "the halves show different extents"
    return None


# %% [markdown]
# Next: [07](07-fsync.ipynb).
