# %% [markdown]
# # 16 · Other designs beside it
#
# btrfs changes no tree block in place. Others do, and write twice; some write nothing but a log; ZFS
# copies as well, and counts in another way. What does each pay for a change, for free room, for a
# snapshot?

# %%
import random

import pandas as pd

import btrfs_model as bm

SIZE, FILES = 4096, 4000
fs = bm.create("1G", nodesize=16384, seed=1)
names = [f"file{number:04}" for number in range(FILES)]
fs.create_files("", names)
fs.sync()
inodes = {name: fs.subvolume("").inode(name).ino for name in names}

# %% [markdown]
# ## A change
#
# Somebody changes the mode of files, here and there. The simplest way: an inode has its place on the
# disk, sixteen of them to a block of 4 KiB as in ext4, and is written there. A crash in the middle of
# several blocks leaves some old and some new. So ext4 has a **journal**: changed blocks are written to
# it first, between a block that says what follows and one that says that all is there; later they
# are written to their places. After a crash what is whole in the journal is written again.
#
# A **log-structured** filesystem stops after the first half: the log is all there is. A changed block
# goes to the end of the log, and a map says where each inode is now.


# %%
def journal(changed):
    """Bytes for a journal: each block twice, and two around."""
    blocks = {ino * 256 // SIZE for ino in changed}
    return SIZE * (2 * len(blocks) + 2)


def log_structured(changed):
    """Bytes for a log: blocks of inodes, and of the map."""
    blocks = -(-len(changed) * 256 // SIZE)
    return SIZE * (blocks + len({ino // 512 for ino in changed}))


assert SIZE // 256 == 16  # an inode of ext4 has 256 bytes


# %% [markdown]
# btrfs copies all blocks from the changed leaf up to the root, in each tree that has to know: the
# subvolume, and the trees of extents and of free space, for the new blocks take room. We count what a
# commit wrote, one copy of each block, and without superblocks.
#
# **Guess:** how many bytes is that for one file, and how many for a thousand?


# %% tags=["hide-output"]
def committed(fs):
    """Bytes of tree blocks that the last commit wrote."""
    last = fs.image.superblock.generation
    return fs.image.nodesize * sum(
        block.generation == last
        for tree in fs.trees.values()
        for block in tree.blocks()
    )


rows, choice = [], random.Random(1)
for count in (1, 10, 100, 1000, 4000):
    chosen = choice.sample(names, count)
    for name in chosen:
        fs.chmod(name, 0o600 + count % 7)
    fs.sync()
    changed = [inodes[name] for name in chosen]
    rows.append(
        {
            "files": count,
            "btrfs": committed(fs),
            "journal": journal(changed),
            "log-structured": log_structured(changed),
        }
    )
table = pd.DataFrame(rows).set_index("files")
table

# %% [markdown]
# For one file copying pays five times as much as the journal. Per file it becomes cheap when many
# changes are gathered: with a thousand it writes less than the journal, which has each block twice.
# The log writes the least while changes are few and far apart. That is its reason to be.

# %% tags=["claims", "hide-input"]
assert table.loc[1, "btrfs"] == 5 * table.loc[1, "journal"]
assert table.loc[1000, "btrfs"] < table.loc[1000, "journal"]
least = table.idxmin(axis=1)
assert (least.loc[:1000] == "log-structured").all()

# %% [markdown]
# A program that calls `fsync` for each file cannot wait for others. That is why btrfs has log trees
# ([07](07-fsync.ipynb)): they are a journal of the other kind, which says what to do instead of how
# blocks look.

# %%
import pathlib
import tempfile

folder = tempfile.TemporaryDirectory()
path = pathlib.Path(folder.name, "crashed.img")
fs.chmod("file0007", 0o640)
fs.fsync("file0007")
fs.save_crash(path)
with bm.open(path) as crashed:
    trees = [crashed.log_root_tree, *crashed.log_trees.values()]
    logged = sum(len(tree.blocks()) for tree in trees)
print(f"an fsync: {logged} blocks of {fs.image.nodesize:,} bytes")
assert logged * fs.image.nodesize < table.loc[1, "btrfs"]

# %% [markdown]
# ## Free room
#
# A log comes to the end of the disk, and must begin anew where old blocks are worth nothing. They lie
# among others. So the disk is cut into **segments**, and a cleaner copies what is still alive out of
# a segment, to have it empty. If a part `u` of it is alive, `u` is copied for a gain of `1 - u`.
#
# Extents of btrfs have free room beside them that can be taken at once, so no cleaner has to run.
# Where block groups have to be given back, there is one: a balance ([11](11-block-groups.ipynb)). It
# pays the same price.


# %%
def half_empty(kept):
    """What a balance would copy when this part of files is kept."""
    with bm.create("1G", seed=1) as fs:
        files = [f"file{number}" for number in range(100)]
        for number, name in enumerate(files):
            fs.create(name)
            fs.write(name, 0, bytes([number]) * (1 << 20))
        fs.sync()
        for name in random.Random(1).sample(files, 100 - kept):
            fs.unlink(name)
        fs.sync()
        fs.save(path)
    return bm.balance_plan(path, data="").table


prices = {}
for kept in (10, 50, 90):
    moved = half_empty(kept)[["used", "size"]].sum()
    prices[kept] = moved["used"] / (moved["size"] - moved["used"])
    print(f"{kept} % kept: {prices[kept]:.2f} bytes for each gained")
assert prices[10] < 0.2 and prices[90] > 2

# %% [markdown]
# Both cleaners want segments that are nearly empty. A log-structured disk that is nearly full copies
# more and more to write anything at all; btrfs gets full block groups, and says `ENOSPC` earlier.
#
# ## A snapshot
#
# ZFS copies on write as well, and its snapshots cost nothing at first either. The difference is
# in how a deleted snapshot finds what it may free. btrfs counts references: a block is free when
# nobody refers to it ([06](06-who-refers.ipynb)). ZFS does not count. Each pointer there says in which
# transaction its block was written: its **birth**. Snapshots stand in a row, by time. A block of
# a snapshot that was born after the snapshot before is in none that is older; if it is not in the next
# one either, nobody has it.
#
# Pointers of btrfs have a birth, too: the generation. So the other rule can be tried.

# %%
home = bm.create("256M", nodesize=4096, seed=1)
home.create_subvolume("home")
home.create_files("home", names[:300])
days = ["monday", "tuesday", "wednesday", "thursday"]
for day in days:
    choice = random.Random(day)
    for name in choice.sample(names[:300], 20):
        home.chmod(f"home/{name}", choice.randrange(0o777))
    home.snapshot("home", day)


def births(fs, name):
    """Addresses of a subvolume's tree blocks, with generations."""
    blocks = fs.subvolume(name).tree.blocks()
    return {block.logical: block.generation for block in blocks}


# %% [markdown]
# **Guess:** does the rule of ZFS find the same blocks as the counts of btrfs, when Tuesday goes?

# %% tags=["hide-output"]
taken = home.subvolumes().set_index("path")["generation"]
by_birth = {}
for before, day, after in zip(days, days[1:], days[2:], strict=False):
    kept = births(home, after)
    by_birth[day] = 4096 * sum(
        born > taken[before] and address not in kept
        for address, born in births(home, day).items()
    )
    counted = bm.freed(home, day)["metadata"].item()
    print(f"{day}: {by_birth[day]:,} and {counted:,} bytes")
    assert by_birth[day] == counted

# %% [markdown]
# The same. ZFS needs no counts for it, and looks for no other references. But its snapshots have to
# stand in a row. A writable copy of Tuesday is in no row: ZFS refuses to delete a
# snapshot that a clone was made of. btrfs deletes it. What is shared with the copy stays, whatever the
# order.

# %%
home.snapshot("tuesday", "copy", read_only=False)
home.sync()
counted = bm.freed(home, "tuesday")["metadata"].item()
was = by_birth["tuesday"]
print(f"now Tuesday frees {counted:,} bytes, not {was:,}")
assert counted == 4096  # its root: a copy has a root of its own

# %% [markdown]
# ## What a kernel wrote
#
# A disk of a kernel, with a snapshot: are blocks that are older than it in both, and younger ones in
# one?

# %%
kernel = bm.open(bm.sample("kernel/features/nodesize-4096"))
when = kernel.subvolumes().set_index("path")["generation"]["snap"]
volume, snap = births(kernel, "volume"), births(kernel, "snap")
older = {one for one, born in volume.items() if born < when}
younger = {one for one, born in volume.items() if born > when}
print(f"{len(older)} older, {len(younger)} younger")
assert older <= set(snap) and not younger & set(snap)

# %% [markdown]
# Side by side:
#
# | | ext4 | log-structured (F2FS, NILFS2) | ZFS | btrfs |
# |---|---|---|---|---|
# | a changed block | journal, then its place | end of the log | elsewhere, up to the root | elsewhere, up to the root |
# | after a crash | the journal is written again | the last checkpoint, and what follows | the last root, and the intent log | the last root, and log trees |
# | where is an inode | computed from its number | in a map | an object of a tree of blocks | an item of a b-tree |
# | sums of data | none | of some | in the pointer above | in a tree of their own |
# | who has this block | one file | one file; snapshots of NILFS2 are old checkpoints | births and rows of snapshots | references, counted |
# | a clone of a file | none | none | a table beside (2.2) | another reference |
#
# ## Exercises
#
# **Exercise 1.** Let `price(parts, empty)` return how many bytes a cleaner copies to get `empty`
# segments' room, when it may choose: `parts` are the bytes alive in segments of a MiB each. It
# takes the emptiest ones first, until what they had free comes to `empty` segments.
#
# <details><summary>A solution</summary>
#
# ```python
# def price(parts, empty):
#     copied = gained = 0
#     for alive in sorted(parts):
#         if gained >= empty << 20:
#             break
#         copied += alive
#         gained += (1 << 20) - alive
#     return copied
# ```
# </details>


# %% tags=["exercise"]
def price(parts, empty): ...  # yours


# %% tags=["check", "hide-input"]
from btrfs_model.base.exercises import judge


@judge
def wrong():
    choice = random.Random(4)
    for empty in (1, 2, 5):
        parts = [choice.randrange(1 << 20) for _ in range(30)]
        right = next(
            sum(sorted(parts)[:count])
            for count in range(31)
            if sum((1 << 20) - one for one in sorted(parts)[:count])
            >= empty << 20
        )
        if (said := price(list(parts), empty)) != right:
            return f"for {empty} it returns {said!r}, not {right:,}"
    return None


# %% [markdown]
# **Exercise 2.** Let `dead(fs, row)` return for each snapshot but the first and the last of `row`,
# which stand in the order of time, the set of addresses that are free when it alone is deleted, as
# a dict by name. Use births as ZFS does; ask nobody who refers to what.
#
# <details><summary>A solution</summary>
#
# ```python
# def dead(fs, row):
#     taken = fs.subvolumes().set_index("path")["generation"]
#     found = {}
#     for before, name, after in zip(row, row[1:], row[2:]):
#         found[name] = {
#             address
#             for address, born in births(fs, name).items()
#             if born > taken[before]
#         } - set(births(fs, after))
#     return found
# ```
# </details>


# %% tags=["exercise"]
def dead(fs, row): ...  # yours


# %% tags=["check", "hide-input"]
@judge
def wrong():
    for files in (200, 300):
        with bm.create("256M", nodesize=4096, seed=3) as other:
            other.create_subvolume("work")
            other.create_files("work", names[:files])
            row = ["a", "b", "c", "d", "e"]
            for number, name in enumerate(row):
                for file in names[number * 30 : number * 30 + 40]:
                    other.chmod(f"work/{file}", 0o600 + number)
                other.snapshot("work", name)
            said = dead(other, row)
            for name in row[1:-1]:
                rest = {*row, "work"} - {name}
                others = {
                    at for one in rest for at in births(other, one)
                }
                right = set(births(other, name)) - others
                if set(said[name]) != right:
                    return f"of {name} it has not its {len(right)}"
    return None


# %% [markdown]
# Next: [17](17-held-to-kernels.ipynb).
