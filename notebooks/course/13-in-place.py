# %% [markdown]
# # 13 · Writing in place: nodatacow and preallocation
#
# A database writes a page here and a page there, all day. With copy on write each of them goes to a
# new place. What becomes of such a file, what does it cost to do without copy on write, and can one
# have a snapshot then?

# %%
import random

import btrfs_model as bm

NOCOW = 0x800000  # FS_NOCOW_FL, the C of chattr and lsattr


def extents(fs, path):
    """The extents of a file of the top."""
    return fs.subvolume("").extents(path)


# %% [markdown]
# ## A database
#
# Our database has 4 MiB. It writes 4096 bytes at random places, 200 times, and has each of them
# committed. An empty file may be given the attribute `C` by `chattr`: then its data are
# **nodatacow**, and a write goes to where the old bytes are. We make it with and without.


# %%
def database(attributes, snapshots=False):
    """Write 200 times; how many extents, how many tree blocks."""
    fs = bm.create("1G", seed=1)
    fs.create("db")
    fs.chattr("db", attributes)
    fs.write("db", 0, b"0" * (4 << 20))
    fs.sync()
    choice = random.Random(3)
    counts, blocks = [len(extents(fs, "db"))], 0
    for number in range(4):
        for _ in range(50):
            fs.write("db", 4096 * choice.randrange(1024), b"1" * 4096)
            fs.sync()
            newest = fs.image.superblock.generation
            blocks += sum(
                block.generation == newest
                for tree in fs.trees.values()
                for block in tree.blocks()
            )
        counts.append(len(extents(fs, "db")))
        if snapshots:
            fs.snapshot("", f"snap{number}")
    return fs, counts, blocks


# %% [markdown]
# **Guess:** how many extents has each file after 200 writes? And how many tree blocks were written
# for it?

# %% tags=["hide-output"]
made = {
    "copy on write": database(0),
    "nodatacow": database(NOCOW),
}
for name, (fs, counts, blocks) in made.items():
    print(f"{name}: {blocks:,} tree blocks were written;")
    taken = fs.raw_super.bytes_used
    print(f"    extents: {counts[-1]}; bytes taken: {taken:,}")

# %% [markdown]
# The one file is in hundreds of pieces, and each write has made up to two more. The other one lies as
# it did. Yet a commit still copies tree blocks: the time of the file has changed, and tree blocks are
# always copied. So nodatacow saves the smaller part of them.
#
# Besides, the first file takes more room. What was written over belongs to the old extent, and that
# is there as a whole as long as any part of it is shown. Here is the beginning of both.

# %% tags=["claims", "hide-input"]
# what the text says
copied, placed = made["copy on write"], made["nodatacow"]
assert 300 < copied[1][-1] <= 1 + 2 * 200 and placed[1][-1] == 1
assert placed[2] < copied[2] < 2 * placed[2]
assert placed[2] >= 200 * 4  # four trees in each commit
table = bm.extents(copied[0], "", "db")
first = table[table["disk_num_bytes"] == 4 << 20]
lost = int(first["bookend"].iloc[0])
assert lost > 0 and first["bookend"].nunique() == 1
more = copied[0].raw_super.bytes_used - placed[0].raw_super.bytes_used
assert more >= lost

# %% alt="Where the first 512 KiB of the file lie on the disk, by the place in the file: with copy on write a line with many gaps, and what is missing far above it; with nodatacow one unbroken line." tags=["hide-input"]
import matplotlib.pyplot as plt

figure, panels = plt.subplots(
    1, 2, figsize=(10, 3), sharey=True, layout="constrained"
)
for panel, (name, (fs, _, _)) in zip(
    panels, made.items(), strict=True
):
    for one in extents(fs, "db"):
        at = (one.disk_bytenr + one.offset) / 2**20
        start, length = one.start / 2**10, one.length / 2**10
        panel.plot(
            [start, start + length],
            [at, at + length / 2**10],
            color="#1b6ca8",
            linewidth=5,
            solid_capstyle="butt",
        )
    panel.set_xlim(0, 512)
    panel.set_title(name)
    panel.set_xlabel("place in the file, KiB")
panels[0].set_ylabel("address, MiB")
# %% [markdown]
# To read the first file from its beginning to its end, the arm of a disk goes up and down hundreds of
# times. (A flash drive has no arm; there each piece is still a request of its own, and an item to
# look up.)

# %%
jumps = {}
for name, (fs, _, _) in made.items():
    pieces = extents(fs, "db")
    ends = [one.disk_bytenr + one.offset for one in pieces]
    jumps[name] = sum(
        start + before.length != after
        for start, before, after in zip(
            ends[:-1], pieces[:-1], ends[1:], strict=True
        )
    )
    print(f"{name}: {jumps[name]} jumps")
assert jumps["copy on write"] > 200 and jumps["nodatacow"] == 0

# %% [markdown]
# ## What it gives up: to notice
#
# In notebook 04, each sector of file data had a checksum. Here it cannot: bytes and checksum would
# have to change in the same moment, and they are at two places of the disk. So a nodatacow file has
# none. (Nor is it compressed, for what is written may pack to another length.) We change a bit of
# both files behind the filesystem's back.
#
# **Guess:** what does a reader get?

# %% tags=["hide-output"]
import pathlib
import tempfile

folder = tempfile.TemporaryDirectory()
path = pathlib.Path(folder.name, "disk.img")


def rotten(fs):
    """What a read returns when a bit of the file has changed."""
    fs.save(path)
    one = extents(fs, "db")[0]
    place, _ = fs.image.map(one.disk_bytenr + one.offset)
    with path.open("r+b") as file:
        file.seek(place + 5)
        byte = file.read(1)[0]
        file.seek(place + 5)
        file.write(bytes([byte ^ 2]))
    with bm.open(path) as disk:
        try:
            return disk.read_file("", "db")[:8]
        except bm.BtrfsModelError as error:
            return type(error).__name__


answers = {name: rotten(fs) for name, (fs, _, _) in made.items()}
for name, answer in answers.items():
    print(f"{name}: {answer}")

# %% [markdown]
# The wrong bytes, and nobody says a word: neither the read nor a scrub. Another copy of the data is no
# help either, for it cannot be told which of them is right.

# %% tags=["claims", "hide-input"]
# what the text says; the image that is left is the nodatacow one
assert answers["copy on write"] == "CorruptImageError"
assert answers["nodatacow"] not in (b"0" * 8, b"1" * 8)
assert len(answers["nodatacow"]) == 8
assert bm.check(path, verify_data=True) == []
sums = {
    name: int((fs.checksums.ends - fs.checksums.starts).sum())
    for name, (fs, _, _) in made.items()
}
assert sums["nodatacow"] == 0 and sums["copy on write"] > 4 << 20

# %% [markdown]
# ## What it gives up: all or nothing
#
# Alice has 100 and gives them to Bob. That changes two sectors. We write both, the first one
# reaches the disk, and then the power fails.


# %%
def line(text):
    """A sector with a text."""
    return text.encode().ljust(4096)


def crashed(attributes):
    """What is in the file after the crash."""
    with bm.create("256M", seed=1) as fs:
        fs.create("bank")
        fs.chattr("bank", attributes)
        ledger = line("alice 100") + line("") + line("bob 0")
        fs.write("bank", 0, ledger)
        fs.sync()
        fs.write("bank", 0, line("alice 0"))
        fs.write("bank", 8192, line("bob 100"))
        fs.sync_file_range("bank", 0, 4096)
        fs.save_crash(path)
    with bm.open(path) as disk:
        return disk.read_file("", "bank").decode().split()


# %% [markdown]
# **Guess:** how much money is there after the crash, with copy on write and without?

# %% tags=["hide-output"]
for name, attributes in (("copy on write", 0), ("nodatacow", NOCOW)):
    print(f"{name}: {' '.join(crashed(attributes))}")

# %% [markdown]
# With copy on write, what the superblock leads to is as it was. In place, the money is gone. Good
# databases do not rely on either: they write down first what they are about to do, in a file beside,
# and fsync it. What they lose with nodatacow are the checksums. (Many of them have checksums of their
# own, too.)

# %% tags=["claims", "hide-input"]
# what the text says
assert crashed(0) == ["alice", "100", "bob", "0"]
assert crashed(NOCOW) == ["alice", "0", "bob", "0"]

# %% [markdown]
# ## A snapshot
#
# A snapshot has to keep the old bytes, and the old bytes are where the next write goes. So what
# happens to our database when a snapshot is taken after each 50 writes?
#
# **Guess:** is the write refused, is the snapshot changed, or is the write copied after all? How many
# extents are there?

# %% tags=["hide-output"]
snapped, counts, _ = database(NOCOW, snapshots=True)
print("extents after 0, 50, 100, 150 and 200 writes:", counts)

# %% [markdown]
# Copied. Where an extent is as old as the last snapshot, or older, a write goes elsewhere; what was
# written since then is in place again. So each sector is copied once for each snapshot, and with a
# snapshot every hour a database is soon in nearly as many pieces as with copy on write.
#
# Would it be whole again if the snapshots were deleted? It is not even asked whether they are still
# there: the number of the last snapshot's transaction stays in the root of the tree.

# %% tags=["claims", "hide-input"]
# what the text says
assert counts[:2] == [1, 1] and counts[-1] > 250
assert copied[1][-1] - counts[-1] < 75
for number in range(4):
    snapped.delete_subvolume(f"snap{number}")
snapped.sync()
snapped.clean_subvolumes()
snapped.sync()
assert len(snapped.subvolume_ids) == 1
old = [
    one
    for one in extents(snapped, "db")
    if one.length > 4096
    and one.generation <= snapped.subvolume("").item.last_snapshot
]
snapped.write("db", old[0].start, b"2" * 4096)
snapped.sync()
moved = [
    one for one in extents(snapped, "db") if one.start == old[0].start
]
assert moved[0].disk_bytenr != old[0].disk_bytenr
# and a second time it is in place
snapped.write("db", old[0].start, b"3" * 4096)
snapped.sync()
(again,) = [
    one for one in extents(snapped, "db") if one.start == old[0].start
]
assert again.disk_bytenr == moved[0].disk_bytenr

# %% [markdown]
# A reflink is another case. There the extent tree is asked who has the extent, and as soon as the
# other file is gone, a write is in place again.

# %%
fs = bm.create("256M", seed=1)
for name in ("db", "clone"):
    fs.create(name)
    fs.chattr(name, NOCOW)
fs.write("db", 0, b"0" * (1 << 20))
fs.clone_range("db", "clone", 0, 0, 1 << 20)
fs.sync()
fs.write("db", 65_536, b"1" * 4096)
fs.sync()
with_clone = len(extents(fs, "db"))
fs.unlink("clone")
fs.sync()
fs.write("db", 131_072, b"1" * 4096)
fs.sync()
without = len(extents(fs, "db"))
print("extents:", with_clone, "with the clone,", without, "without")
assert with_clone == without == 3

# %% [markdown]
# ## Preallocation
#
# `fallocate` gets room for a file beforehand. Such an extent is **preallocated**: it belongs to the
# file, nobody has written to it, and it reads as zeros, whatever the disk has there.
#
# **Guess:** the file has no attribute `C`. We write 4096 bytes into the middle, and the same again.
# What is in place?

# %% tags=["hide-output"]
fs.create("log")
fs.fallocate("log", 0, 1 << 20)
fs.sync()
tables = [bm.extents(fs, "", "log")]
for _ in range(2):
    fs.write("log", 65_536, b"l" * 4096)
    fs.sync()
    tables.append(bm.extents(fs, "", "log"))
columns = ["start", "length", "type", "disk_bytenr", "offset"]
for table in tables:
    print(table[columns].to_string(index=False))

# %% [markdown]
# The first write is in place: its item was split in three, all of the same extent. Nothing is lost by
# that, for there were no old bytes. The second one is copied like any other. So in a filesystem that
# is full, preallocated room holds what it promises once, and no more.

# %% tags=["claims", "hide-input"]
# what the text says
first, second, third = (list(t["disk_bytenr"]) for t in tables)
assert len(first) == 1 and second == first * 3
assert third[0] == third[2] == first[0] != third[1]
assert list(tables[1]["type"]) == ["prealloc", "regular", "prealloc"]
assert not any(fs.read_file("", "log")[:65_536])

# %%
fs.create("promised")
fs.fallocate("promised", 0, 1 << 20)
fs.create("filler")
try:
    for number in range(256):
        fs.write("filler", number << 20, b"f" * (1 << 20))
except OSError as error:
    print("filled:", error.strerror)
fs.sync()
said = []
for number in range(2):
    try:
        fs.write("promised", 0, b"p" * (1 << 20))
        fs.sync()
        said.append("it fits")
    except OSError as error:
        said.append(error.strerror)
    print(f"write number {number + 1}:", said[-1])
assert said == ["it fits", "No space left on device"]

# %% [markdown]
# ## Is this what a kernel does?
#
# We wrote the database by Linux 6.18.44, at the same places. It had as many extents each time.

# %%
ON_A_KERNEL = {
    "copy on write": [1, 98, 179, 251, 327],
    "nodatacow": [1, 1, 1, 1, 1],
    "nodatacow, snapshots": [1, 1, 99, 179, 259],
}
counted = {name: by_model for name, (_, by_model, _) in made.items()}
counted["nodatacow, snapshots"] = counts
assert counted == ON_A_KERNEL

# %% [markdown]
# And this image is of a kernel that was mounted with `nodatacow`. Its file `regular` was written to
# after the snapshot `snap` had been taken: one sector in two trees, at two places. The rest is shared.

# %%
kernel = bm.open(bm.sample("kernel/features/nodatacow"))
found = {}
for name in ("volume", "snap"):
    for one in kernel.subvolume(name).extents("regular"):
        found.setdefault(one.start, {})[name] = one
        print(
            f"{name:7}{one.start:>7,}{one.length:>7,}",
            f"at {one.disk_bytenr + one.offset:,}",
            "preallocated" if one.type == 2 else "",
        )

# %% tags=["claims", "hide-input"]
# what the text says
first = found[0]
assert first["volume"].length == 4096
assert first["volume"].disk_bytenr != first["snap"].disk_bytenr
assert found[4096]["volume"].disk_bytenr == first["snap"].disk_bytenr
assert (
    found[131_072]["volume"].disk_bytenr
    == found[131_072]["snap"].disk_bytenr
)
assert len(kernel.checksums.starts) == 0
assert all(
    kernel.subvolume("volume").inode(name).flags & 2
    for name in ("regular", "prealloc", "sparse", "clone")
)

# %% [markdown]
# ## Exercises
#
# **Exercise 1.** Would a write of the sector at `offset` be in place? Let `in_place(fs, path, offset)`
# say so, `True` or `False`, without writing. The extent must be preallocated (`extent.type == 2`), or
# the file nodatacow (`inode.flags & 2`); its `generation` must be younger than
# `fs.subvolume("").item.last_snapshot`; and nobody else may have it: for `path`,
# `bm.extent_references(fs, "", path)` has a row for each item that shows an extent, with its
# `disk_bytenr` and `inode`.
#
# <details><summary>A solution</summary>
#
# ```python
# def in_place(fs, path, offset):
#     top = fs.subvolume("")
#     inode = top.inode(path)
#     (extent,) = [
#         one
#         for one in top.extents(path)
#         if one.start <= offset < one.start + one.length
#     ]
#     if extent.type != 2 and not inode.flags & 2:
#         return False
#     if extent.generation <= top.item.last_snapshot:
#         return False
#     users = bm.extent_references(fs, "", path)
#     here = users[users["disk_bytenr"] == extent.disk_bytenr]
#     return set(here["inode"]) == {inode.ino}
# ```
# </details>


# %% tags=["exercise"]
def in_place(fs, path, offset): ...  # yours


# %% tags=["check", "hide-input"]
from btrfs_model.base.exercises import judge


def several():
    """Files of all kinds, of 64 KiB each."""
    fs = bm.create("256M", seed=7)
    for name in ("cow", "nocow", "promised", "cloned", "clone"):
        fs.create(name)
        if name in ("nocow", "cloned", "clone"):
            fs.chattr(name, NOCOW)
        if name == "promised":
            fs.fallocate(name, 0, 65_536)
        elif name != "clone":
            fs.write(name, 0, b"0" * 65_536)
    fs.clone_range("cloned", "clone", 0, 0, 65_536)
    fs.sync()
    return fs


def place(fs, path, offset):
    """The address of a byte of a file."""
    for one in extents(fs, path):
        if one.start <= offset < one.start + one.length:
            return one.disk_bytenr + one.offset + offset - one.start


@judge
def wrong():
    for is_snapped in (False, True):
        with several() as fs:
            if is_snapped:
                fs.snapshot("", "snap")
            for path in ("cow", "nocow", "promised", "cloned"):
                for offset in (0, 40_960, 40_960):
                    said = in_place(fs, path, offset)
                    was = place(fs, path, offset)
                    fs.write(path, offset, b"1" * 4096)
                    fs.sync()
                    right = place(fs, path, offset) == was
                    if said is not right:
                        where = f"{path} at {offset}"
                        return f"of {where} it says {said}"
    return None


# %% [markdown]
# **Exercise 2.** To a file that has data, `chattr +C` does nothing. Let `convert(fs, path)` make a
# file of the top nodatacow, with the same name, bytes and mode: write an empty one that has the
# attribute, and rename it over the old one.
#
# <details><summary>A solution</summary>
#
# ```python
# def convert(fs, path):
#     new = path + ".new"
#     fs.create(new)
#     fs.chattr(new, NOCOW)
#     fs.chmod(new, fs.subvolume("").inode(path).mode & 0o7777)
#     fs.write(new, 0, fs.read_file("", path))
#     fs.rename(new, path)
#     fs.sync()
# ```
# </details>


# %% tags=["exercise"]
def convert(fs, path): ...  # yours


# %% tags=["check", "hide-input"]
@judge
def wrong():
    with bm.create("256M", seed=8) as fs:
        for number, size in enumerate((1, 5000, 300_000)):
            name = f"file of {size} bytes"
            data = (name.encode() * size)[:size]
            mode = 0o600 + 4 * number
            fs.create(name)
            fs.chmod(name, mode)
            fs.write(name, 0, data)
            fs.sync()
            convert(fs, name)
            inode = fs.subvolume("").inode(name)
            if not inode.flags & 2:
                return f"a {name} has no attribute (was it synced?)"
            if inode.mode & 0o7777 != mode:
                return (
                    f"a {name} has the mode {inode.mode & 0o7777:o}"
                )
            if fs.read_file("", name) != data:
                return f"a {name} has other bytes"
            if len(list(fs.subvolume("").readdir(""))) != number + 1:
                return f"a {name} has left another one behind"
    return None


# %% [markdown]
# Next: [14](14-quotas.ipynb).
