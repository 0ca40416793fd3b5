# %% [markdown]
# # 04 · Extents, checksums, compression, holes
#
# A tree of 16 KiB blocks is no place for a film. Where do the bytes of large files lie, how does
# btrfs know that they are still what was written, and can a file be longer than what it takes?

# %%
import btrfs_model as bm

fs = bm.create("512M", seed=1)
fs.create("film")
fs.write("film", 0, b"frame " * 100_000)
fs.sync()
top = fs.subvolume("")


def show(path):
    """The extents of a file, one a line."""
    for extent in fs.subvolume("").extents(path):
        length, start = f"{extent.length:,}", f"{extent.start:,}"
        print(
            f"{path}: {length} bytes from {start}",
            f"at {extent.disk_bytenr:,}",
        )


show("film")

# %% [markdown]
# ## Extents
#
# One item for 600,000 bytes: they lie in one run. The item has the address, the length, and where
# in the run this part of the file begins. Now we write over 4096 bytes in the middle.

# %% tags=["claims", "hide-input"]
# what the text says
assert fs.subvolume("").inode("film").size == 600_000
assert len(top.extents("film")) == 1

# %% [markdown]
# **Guess:** how many items has the file then?

# %% tags=["hide-output"]
fs.write("film", 40_960, b"#" * 4096)
fs.sync()
show("film")

# %% [markdown]
# File data are copied on write, too: the new bytes lie elsewhere. The old extent is still there,
# whole, and the items before and behind the new bytes show parts of it. Its 4096 bytes in the
# middle are used by nobody, and cannot be given to anyone else: an extent is freed as a whole or
# not at all. The table says it in the column `bookend`: bytes of the extent that nobody shows.

# %%
columns = [
    "start",
    "length",
    "disk_bytenr",
    "disk_num_bytes",
    "bookend",
]
film = bm.extents(fs, "", "film")
film[columns]

# %% tags=["claims", "hide-input"]
# what the text says
assert len(film) == 3
assert film["disk_bytenr"][0] == film["disk_bytenr"][2]
assert list(film["bookend"]) == [4096, 0, 4096]
(size,) = {
    item.key.offset
    for item in fs.tree(2).items()
    if item.key[:2]
    == (int(film["disk_bytenr"][0]), 168)  # EXTENT_ITEM
}
assert size == film["disk_num_bytes"][0] == 602_112

# %% [markdown]
# ## Holes
#
# A file whose end is far away need not have bytes all the way. Where nothing was written, or what
# was written was taken away again, is a **hole**: it reads as zeros, and takes no room.

# %%
fs.create("sparse")
fs.write("sparse", 10_000_000, b"the end")
fs.sync()
inode = fs.subvolume("").inode("sparse")
print(f"size {inode.size:,} bytes, stored {inode.nbytes:,}")
show("sparse")

# %% [markdown]
# The hole has no item at all. It is between the items. (In filesystems that were made without the
# feature `no-holes`, as most were until 2021, each hole has one.) `punch_hole` makes a hole where
# there were data.

# %% tags=["claims", "hide-input"]
# what the text says; 108: EXTENT_DATA
assert fs.read_file("", "sparse")[:9_000_000] == bytes(9_000_000)
assert inode.nbytes == 4096
for no_holes in (True, False):
    with bm.create("256M", seed=1, no_holes=no_holes) as one:
        one.create("f")
        one.write("f", 40_960, b"the end" * 1000)
        one.sync()
        inode = one.subvolume("").resolve("f")
        items = list(
            one.tree(5).items(
                (inode, 108, 0), (inode, 108, 2**64 - 1)
            )
        )
    assert len(items) == (1 if no_holes else 2)

# %%
fs.punch_hole("film", 0, 40_960)
fs.sync()
show("film")

# %% [markdown]
# ## Checksums
#
# Disks return wrong bytes now and then, and say nothing. So for each sector of file data there is a
# **checksum**, in a tree of their own, and each read from the disk compares. It has four bytes here;
# mkfs can be asked for longer ones. (Files that do without copy on write do without it, as do those
# of a mount with `nodatasum`; inline data have that of their tree block.) What if we change one bit
# of the image behind the filesystem's back?

# %%
import pathlib
import tempfile

folder = tempfile.TemporaryDirectory()
path = pathlib.Path(folder.name, "disk.img")
fs.save(path)
extent = fs.subvolume("").extents("film")[-1]
physical, _ = fs.image.map(extent.disk_bytenr + extent.offset)
with path.open("r+b") as file:
    file.seek(physical + 5)
    byte = file.read(1)[0]
    file.seek(physical + 5)
    file.write(bytes([byte ^ 1]))
findings = bm.check(path, verify_data=True)
for finding in findings:
    print(finding)

# %% tags=["claims", "hide-input"]
# what the text says; 7: the tree of checksums, 128: EXTENT_CSUM
assert len(findings) == 1
sectors = sum(
    extent.disk_num_bytes // 4096
    for extent in {
        extent.disk_bytenr: extent
        for name in ("film", "sparse")
        for extent in fs.subvolume("").extents(name)
    }.values()
)
sums = [item for item in fs.tree(7).items() if item.key.type == 128]
assert sum(len(item.data) for item in sums) == 4 * sectors
with bm.create("256M", seed=1) as one:
    one.set_mount_options("nodatasum")
    one.create("f")
    one.write("f", 0, b"f" * 8192)
    one.sync()
    assert one.subvolume("").extents("f")
    assert not list(one.tree(7).items())

# %% [markdown]
# A checksum also tells when the right bytes were found, wherever they are from. Here another image has
# them.

# %%
other = pathlib.Path(folder.name, "other.img")
fs.save(other)
healed = bm.heal(path, other)
for run in healed.table.itertuples():
    print(run.what, "at", run.offset, "by", run.proof)

# %% [markdown]
# Tree blocks have a checksum in their own header, so that a bad one is found before anything in it
# is believed. Of two copies, the good one is taken.

# %% tags=["claims", "hide-input"]
# what the text says: a bit of the fs tree's first copy is wrong
physical, _ = fs.image.map(fs.tree(5).bytenr)
with path.open("r+b") as file:
    file.seek(physical + 200)
    byte = file.read(1)[0]
    file.seek(physical + 200)
    file.write(bytes([byte ^ 1]))
with bm.open(path) as damaged:
    assert damaged.read_file("", "sparse").endswith(b"the end")
    assert len(bm.check(path)) == 1

# %% [markdown]
# ## Compression
#
# Data may be stored smaller than they are. An extent that is compressed has two lengths: what it
# takes on disk, and what it has in the file.

# %%
fs.create("packed")
fs.set_compression("packed", "zstd")
fs.write("packed", 0, b"again and again " * 50_000)
fs.sync()
for extent in fs.subvolume("").extents("packed"):
    of_file, of_disk = (
        f"{extent.ram_bytes:,}",
        f"{extent.disk_num_bytes:,}",
    )
    print(
        f"{of_file} bytes of the file in {of_disk} bytes of the disk"
    )
    assert extent.disk_num_bytes < extent.ram_bytes <= 131_072

# %% [markdown]
# Each piece is at most 131,072 bytes of the file, for a reader of one byte must unpack a whole
# piece.
#
# ## Is this what a kernel does?
#
# A kernel compressed files by zstd. We read them all, and each sector's checksum is compared on the
# way.

# %%
kernel = bm.open(bm.sample("kernel/features/zstd"))
read = 0
for number in kernel.subvolume_ids:
    listing = kernel.listing(number)
    read += int(listing["sha256"].notna().sum())
findings = bm.check(kernel, verify_data=True)
print(read, "files read;", "findings:", findings)
assert read and not findings

# %% [markdown]
# ## Exercises
#
# **Exercise 1.** Let `waste(fs, path)` return how many bytes of a file's extents nobody shows: the
# sum of `bookend` in `bm.extents(fs, "", path)`. Count each extent once: two rows of the table may
# show parts of the same one.
#
# <details><summary>A solution</summary>
#
# ```python
# def waste(fs, path):
#     table = bm.extents(fs, "", path).drop_duplicates("disk_bytenr")
#     return int(table["bookend"].sum())
# ```
# </details>


# %% tags=["exercise"]
def waste(fs, path): ...  # yours


# %% tags=["check", "hide-input"]
from btrfs_model.base.exercises import judge


@judge
def wrong():
    with bm.create("256M", seed=2) as one:
        for number, places in enumerate(
            ([], [4096], [8192, 40_960, 40_960])
        ):
            name = f"written over {len(places)} times"
            one.create(name)
            one.write(name, 0, bytes([number + 1]) * 81_920)
            one.sync()
            for place in places:
                one.write(name, place, b"#" * 4096)
                one.sync()
            right = 4096 * len(set(places))
            if (said := waste(one, name)) != right:
                return f"of a file {name} it returns {said}"
    return None


# %% [markdown]
# **Exercise 2.** Let `lace(fs, path, count)` make a file that has exactly so many extents, all of
# 4096 bytes, with a hole of 4096 bytes between each and the next.
#
# <details><summary>A solution</summary>
#
# ```python
# def lace(fs, path, count):
#     fs.create(path)
#     for number in range(count):
#         fs.write(path, number * 8192, b"o" * 4096)
#     fs.sync()
# ```
# </details>


# %% tags=["exercise"]
def lace(fs, path, count): ...  # yours


# %% tags=["check", "hide-input"]
@judge
def wrong():
    for count in (5, 2):
        with bm.create("256M", seed=2) as one:
            lace(one, "lace", count)
            names = {
                entry.name for entry in one.subvolume("").readdir("")
            }
            if b"lace" not in names:
                return "there is no such file (was it synced?)"
            extents = one.subvolume("").extents("lace")
            said = [
                (extent.start, extent.length) for extent in extents
            ]
            if said != [
                (8192 * number, 4096) for number in range(count)
            ]:
                return (
                    f"of {count} extents, starts and lengths: {said}"
                )
    return None


# %% [markdown]
# Next: [05](05-names.ipynb).
