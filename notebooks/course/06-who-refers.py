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
# references themselves: the **back references**. One says, for example: subvolume 256, inode 317,
# at the file's byte 0.


# %%
def counted():
    """References of the extent that are counted, and files that show it."""
    row = bm.extents(fs, "sub", "first").iloc[0]
    return f"{row['refs']} references counted, {row['references']} files show it"


print(counted())

# %% [markdown]
# **Guess:** we take a snapshot of the subvolume. How many references are counted then, and how many
# files show the extent?

# %%
fs.snapshot("sub", "snap")
fs.sync()
print(counted())

# %% [markdown]
# Two references as before, but four files. The snapshot shares the leaf that points at the extent,
# and for that leaf a reference is counted already. Who wants to know all files has to walk: from
# the extent to the leaf, from the leaf to the nodes above it, from these to the roots. This is the
# **backref walk**.

# %%
with bm.counting() as work:
    found = bm.logical_ino(fs, extent.disk_bytenr)
print("searches:", work["btrfs_search_slot"] + work["btrfs_search_old_slot"])
found

# %% [markdown]
# Two files in each of the two trees. The searches are what it took, in the extent tree and from
# each root.
#
# ## FIEMAP
#
# `FIEMAP` is the call by which programs ask where a file's extents lie. For each it also says
# whether it is shared with anybody, as `cp`, `du` and backup tools want to know. So it has to walk,
# too. Flag `0x2000` means shared.

# %%
with bm.counting() as work:
    table = bm.fiemap(fs, "sub", "first")
print("shared:", [bool(flags & 0x2000) for flags in table["flags"]])
print("searches:", work["btrfs_search_slot"])

# %% [markdown]
# ## What a write does to it
#
# The subvolume writes to one file. Now its leaf is copied. Each of the two leaves refers to the
# extent, and the extent tree must know both.

# %%
fs.write("sub/second", 0, b"2" * 4096)
fs.sync()
print(counted())
for name in ("sub", "snap"):
    for path in ("first", "second"):
        flags = bm.fiemap(fs, name, path)["flags"]
        print(name, path, "shared:", [bool(flag & 0x2000) for flag in flags])

# %% [markdown]
# The new 4096 bytes belong to one file alone. All else is shared still.
#
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
        if row.key.type == 108 and row.data[20] == 1:  # EXTENT_DATA, not inline
            address = int.from_bytes(row.data[21:29], "little")
            users.setdefault(address, set()).add((number, row.key.objectid))
file = next(e.name for e in kernel.subvolume("").readdir("") if e.location.type == 1)
table = bm.fiemap(kernel, "", file)
by_walk = [bool(flags & 0x2000) for flags in table["flags"]]
by_look = [len(users[e.disk_bytenr]) > 1 for e in kernel.subvolume("").extents(file)]
print(sum(by_walk), "of", len(by_walk), "extents are shared; the same by both:", by_walk == by_look)

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


# %% tags=["check"]
with bm.create("256M", seed=1) as one:
    one.create("f")
    one.write("f", 0, b"f" * 8192)
    one.sync()
    alone = owners(one, "", "f")
print("right" if (alone, owners(fs, "sub", "first")) == (1, 3) else "not yet")

# %% [markdown]
# **Exercise 2.** Make an extent that is shared within one file: let `twice(fs)` make a file `same`
# of 8192 bytes in which the first and the second half show the same extent of 4096 bytes.
#
# <details><summary>A solution</summary>
#
# ```python
# def twice(fs):
#     fs.create("same")
#     fs.write("same", 0, b"s" * 4096)
#     fs.clone_range("same", "same", 0, 4096, 4096)
#     fs.sync()
# ```
# </details>


# %% tags=["exercise"]
def twice(fs): ...  # yours


# %% tags=["check"]
with bm.create("256M", seed=1) as one:
    twice(one)
    names = [entry.name for entry in one.subvolume("").readdir("")]
    places = [e.disk_bytenr for e in one.subvolume("").extents("same")] if names else []
print("right" if len(places) == 2 and places[0] == places[1] else "not yet")

# %% [markdown]
# Next: [07](07-fsync.ipynb).
