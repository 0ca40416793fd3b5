# %% [markdown]
# # Assignment · A file comes back
#
# Ten points. It takes what the chapters [on trees](../course/01-the-b-tree.ipynb), [copy on
# write](../course/02-copy-on-write.ipynb) and [file data](../course/04-file-data.ipynb) say.
#
# Somebody wrote zeros over both copies of a tree block. It was the root of tree 5, the top directory.
# All leaves are still there, but nothing leads to them any more.

# %%
import pathlib
import tempfile

import btrfs_model as bm
from btrfs_model.teaching.recover import broken_disk

folder = tempfile.TemporaryDirectory()
path = pathlib.Path(folder.name, "broken.img")
contents = broken_disk(path)
print(
    len(contents),
    "files; sizes:",
    sorted(map(len, contents.values()))[-3:],
)
try:
    bm.open(path).read_file("", "letter0")
except (bm.BtrfsModelError, OSError) as error:
    print(str(error).partition(": ")[2])

# %% [markdown]
# A tree block begins with a header of 101 bytes, little endian: checksum (32 bytes), fsid (16), own
# logical address (8), flags (8), UUID of the chunk tree (16), generation (8), owner (8), number of
# items (4), level (1). In a leaf an item header of 25 bytes follows for each item: objectid (8), type
# (1), offset (8), then where its data begin, counted from the end of the block's header (4), and their
# size (4). `bm.open(path)` still gives you the superblock, chunks and all other trees.
#
# Write three functions; `bm.rescue` is not there while they are checked.
#
# | function | points | returns |
# |---|---|---|
# | `lost(path)` | 2 | the logical address of the block that is lost |
# | `leaves(path)` | 4 | a set of the logical addresses of leaves of tree 5 that lie on the device, also of older ones |
# | `recover(path, name)` | 4 | the content of a file of the top directory |
#
# Older leaves lie beside newer ones: which of two items with the same key is right? An inode's name
# is in its INODE_REF (type 12), its size in the INODE_ITEM (type 1), its data in EXTENT_DATA (type 108):
# inline behind 21 bytes, or from a disk address that `bm.open(path).image.map` takes to a byte of the
# device. [The format](https://btrfs.readthedocs.io/en/latest/dev/On-disk-format.html) has the fields.


# %% tags=["start"]
def lost(path): ...  # yours


def leaves(path): ...  # yours


def recover(path, name): ...  # yours


# %% tags=["grade"]
from btrfs_model.teaching import grade

grade("recover", globals())
