# %% [markdown]
# # 12 · Copies, lost disks, and self-healing
#
# Disks die, and before they die they return wrong bytes. A filesystem that keeps checksums sees
# that. What it can do about it hangs on how often it has what was there.

# %%
import pathlib
import tempfile

import btrfs_model as bm

folder = tempfile.TemporaryDirectory()
path = pathlib.Path(folder.name, "disk.img")
fs = bm.create("256M", nodesize=4096, seed=1)
fs.create_files("", [f"file{number:02}" for number in range(40)])
fs.create("photo")
fs.write("photo", 0, b"p" * 50_000)
fs.save(path)

# %% [markdown]
# ## Two copies on one disk
#
# Each chunk has a **profile**, which says how its bytes lie on disks. On a single disk mkfs gives
# data the profile SINGLE, one copy, and tree blocks the profile DUP, two of them. Where are they? A
# **stripe** is a run of a disk that a chunk has.

# %%
with bm.open(path) as disk:
    root = disk.subvolume("").tree.bytenr
    photo = disk.subvolume("").extents("photo")[0].disk_bytenr
    stripes = disk.stripes()
    first, second = (disk.image.map(root, n)[0] for n in (0, 1))
    of_photo = disk.image.map(photo, 0)[0]
stripes[["chunk", "type", "stripe", "devid", "offset"]]

# %% [markdown]
# Each tree block is there twice, and data once.

# %% tags=["claims", "hide-input"]
# what the text says
data = stripes["type"] == "DATA"
assert first != second
assert (stripes[~data].groupby("chunk").size() == 2).all()
assert (stripes[data].groupby("chunk").size() == 1).all()

# %% [markdown]
# **Guess:** we flip a bit in the first copy of the root of the files, and one in the photo. What can
# be read?


# %% tags=["hide-output"]
def flip(path, place):
    """Change a bit of a byte of the disk."""
    with path.open("r+b") as file:
        file.seek(place)
        byte = file.read(1)[0]
        file.seek(place)
        file.write(bytes([byte ^ 1]))


def read(path, name):
    """Read a file, or say why not."""
    with bm.open(path) as disk:
        try:
            return f"{len(disk.read_file('', name))} bytes"
        except bm.BtrfsModelError as error:
            return type(error).__name__


flip(path, first)
print("the root is damaged:", read(path, "photo"))
flip(path, of_photo)
print("the photo is damaged:", read(path, "photo"))

# %% [markdown]
# The checksum of the root is wrong, so the other copy is taken, and nobody notices. The checksum of
# the photo is wrong as well, but there is no other copy. So the read fails: that is better than a
# wrong picture, which would go into every backup.

# %% tags=["claims", "hide-input"]
# what the text says
assert read(path, "photo") == "CorruptImageError"
with bm.open(path) as disk:
    assert len(list(disk.subvolume("").readdir(""))) == 41

# %% [markdown]
# ## Self-healing
#
# What a kernel reads and finds wrong it writes anew from the good copy, on the spot; `scrub` reads
# everything for that. `bm.heal` does it to an image, or says what it cannot heal.

# %%
healed = bm.heal(path)
healed.table

# %% tags=["claims", "hide-input"]
# the root is right again, and the photo is not
fixed = pathlib.Path(folder.name, "fixed.img")
healed.write_copy(path, fixed)
assert not healed.is_whole
found = bm.check(fixed, verify_data=True)
assert found and len(found) < len(bm.check(path, verify_data=True))

# %% [markdown]
# ## Several disks
#
# With two disks mkfs gives tree blocks the profile RAID1: a copy on each. Data are SINGLE again,
# unless one says `-d raid1`. Here are two disks that a kernel wrote.

# %%
devices = [
    bm.sample("kernel/devices/single/1"),
    bm.sample("kernel/devices/single/2"),
]
kernel = bm.open(devices)
kernel.stripes()[["chunk", "type", "devid", "offset"]]

# %% [markdown]
# **Guess:** the first disk dies. Which files are lost, and can the rest be mounted?

# %% tags=["hide-output"]
left = bm.device_lost(kernel, 1)
print("mount:", left.mount)
left.files

# %% [markdown]
# All names are there, for each tree block has a copy on the other disk. Of the data, those are lost
# that lay on the first. The kernel mounts what is left with `degraded`, and only for reading: it must
# not go on as if nothing had happened.

# %% tags=["claims", "hide-input"]
# what the text says
assert left.trees.empty and left.mount == "read-only"
stripes = kernel.stripes()
trees = stripes[~stripes["type"].eq("DATA")]
assert (trees.groupby("chunk")["devid"].nunique() == 2).all()
assert (left.files["lost"] > 0).any()
names = {
    entry.name.decode()
    for number in kernel.subvolume_ids
    for entry in kernel.subvolume(number).readdir("")
}
assert set(left.files["path"]) < names

# %% [markdown]
# ## Parity
#
# Two copies take twice the room. With three disks or more there is a cheaper way. RAID5 puts pieces
# of 64 KiB on all disks but one, and on the last the **parity** of them: of each place in the pieces
# the XOR of the bits there. The XOR of all that is left gives back what is missing, whichever it is.

# %%
pieces = [b"the tree", b"of files", b"is there"]


def xor(blocks):
    """XOR of blocks, byte by byte."""
    out = bytearray(blocks[0])
    for block in blocks[1:]:
        for at, byte in enumerate(block):
            out[at] ^= byte
    return bytes(out)


parity = xor(pieces)
print("parity:", parity.hex())
print("without the second:", xor([pieces[0], pieces[2], parity]))

# %% tags=["claims", "hide-input"]
# what the text says: whichever it is
for gone in range(3):
    rest = [piece for at, piece in enumerate(pieces) if at != gone]
    assert xor([*rest, parity]) == pieces[gone]

# %% [markdown]
# RAID6 has a second sum besides, and survives two disks. The price of both: a small write has to
# change the parity as well, and a crash between the two leaves them apart. Copy on write does not
# help there, for the parity also covers what lies beside.
#
# ## Exercises
#
# **Exercise 1.** Let `copies(fs, address)` return all places on its disk where a byte at a logical
# address lies, as a list of pairs: the disk's number and the byte of it. `fs.stripes()` tells. Only
# profiles are asked for in which each stripe has all of a chunk.
#
# <details><summary>A solution</summary>
#
# ```python
# def copies(fs, address):
#     found = []
#     for row in fs.stripes().itertuples():
#         within = address - row.chunk
#         if 0 <= within < row.length:
#             found.append((row.devid, row.offset + within))
#     return found
# ```
# </details>


# %% tags=["exercise"]
def copies(fs, address): ...  # yours


# %% tags=["check", "hide-input"]
from btrfs_model.base.exercises import judge


@judge
def wrong():
    for one in (bm.open(path), kernel):
        for chunk in one.image.chunks:
            for within in (0, 4096, chunk.length - 1):
                asked = chunk.logical + within
                devids = chunk.devids or (1,)
                right = {
                    (devid, stripe + within)
                    for devid, stripe in zip(
                        devids, chunk.stripes, strict=True
                    )
                }
                said = copies(one, asked)
                if set(map(tuple, said)) != right:
                    return f"of address {asked} it returns {said}"
    return None


# %% [markdown]
# **Exercise 2.** A disk of a RAID5 is gone. Let `rebuild(blocks)` get the blocks of all disks in a
# row, the parity among them and `None` in the place of the one that is gone, and return that one.
#
# <details><summary>A solution</summary>
#
# ```python
# def rebuild(blocks):
#     return xor([block for block in blocks if block is not None])
# ```
# </details>


# %% tags=["exercise"]
def rebuild(blocks): ...  # yours


# %% tags=["check", "hide-input"]
import random


@judge
def wrong():
    choice = random.Random(6)
    for disks in (2, 3, 5):
        row = [choice.randbytes(64) for _ in range(disks - 1)]
        row.append(xor(row))
        for gone in range(disks):
            asked = [
                None if at == gone else block
                for at, block in enumerate(row)
            ]
            said = rebuild(asked)
            if said != row[gone]:
                what = f"block {gone} of {disks}"
                return f"for {what} it returns {said!r}"
    return None


# %% [markdown]
# Next: [13](13-in-place.ipynb).
