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
        where = f"at {extent.disk_bytenr:,}" if extent.disk_bytenr else "a hole"
        print(f"{path}: {extent.length:,} bytes from {extent.start:,} {where}")


show("film")

# %% [markdown]
# ## Extents
#
# One item for 600,000 bytes: they lie in one run. The item has the address, the length, and where
# in the run this part of the file begins. Now we write over 4096 bytes in the middle.
#
# **Guess:** how many items has the file then?

# %%
fs.write("film", 40_960, b"#" * 4096)
fs.sync()
show("film")

# %% [markdown]
# Three. File data are copied on write, too: the new bytes lie elsewhere. The old extent is still
# there, whole, and the first and the third item show parts of it. Its 4096 bytes in the middle are
# used by nobody, and cannot be given to anyone else: an extent is freed as a whole or not at all.
# The table says it in the column `bookend`: bytes of the extent that nobody shows.

# %%
bm.extents(fs, "", "film")[["start", "length", "disk_bytenr", "disk_num_bytes", "bookend"]]

# %% [markdown]
# ## Holes
#
# A file whose end is far away need not have bytes all the way. Where nothing was ever written is a
# **hole**: it reads as zeros, and takes no room.

# %%
fs.create("sparse")
fs.write("sparse", 10_000_000, b"the end")
fs.sync()
inode = fs.subvolume("").inode("sparse")
print(f"size {inode.size:,} bytes, of which {inode.nbytes:,} are stored")
show("sparse")

# %% [markdown]
# The hole has no item at all. It is between the items. (In old filesystems each hole had
# one.) `punch_hole` makes a hole where there were data.

# %%
fs.punch_hole("film", 0, 40_960)
fs.sync()
show("film")

# %% [markdown]
# ## Checksums
#
# Disks return wrong bytes now and then, and say nothing. So for each sector of file data there is a
# **checksum** of four bytes, in a tree of their own. Each read compares. What if we change one bit
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
for finding in bm.check(path, verify_data=True):
    print(finding)

# %% [markdown]
# Tree blocks have a checksum in their own header, so that a bad one is found before anything in it
# is believed. Of two copies, the good one is taken.
#
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
    print(f"{extent.ram_bytes:,} bytes of the file in {extent.disk_num_bytes:,} bytes of the disk")

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
print(read, "files read;", "findings:", bm.check(kernel, verify_data=True))

# %% [markdown]
# ## Exercises
#
# **Exercise 1.** Let `waste(path)` return how many bytes of a file's extents nobody shows: the sum
# of `bookend` in `bm.extents(fs, "", path)`. Count each extent once: two rows of the table may show
# parts of the same one.
#
# <details><summary>A solution</summary>
#
# ```python
# def waste(path):
#     table = bm.extents(fs, "", path).drop_duplicates("disk_bytenr")
#     return int(table["bookend"].sum())
# ```
# </details>


# %% tags=["exercise"]
def waste(path): ...  # yours


# %% tags=["check"]
print("right" if waste("film") == 40_960 + 4096 else "not yet")

# %% [markdown]
# **Exercise 2.** Write the file `lace` so that it has exactly five extents, all of 4096 bytes, with
# a hole between each and the next. Let `lace()` do it.
#
# <details><summary>A solution</summary>
#
# ```python
# def lace():
#     fs.create("lace")
#     for number in range(5):
#         fs.write("lace", number * 8192, b"o" * 4096)
#     fs.sync()
# ```
# </details>


# %% tags=["exercise"]
def lace(): ...  # yours


# %% tags=["check"]
lace()
names = {entry.name for entry in fs.subvolume("").readdir("")}
holes = [e.start for e in fs.subvolume("").extents("lace")] if b"lace" in names else []
print("right" if holes == [0, 8192, 16384, 24576, 32768] else "not yet")

# %% [markdown]
# Next: [05](05-names.ipynb).
