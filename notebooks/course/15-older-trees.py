# %% [markdown]
# # 15 · Older trees, and rescue
#
# You deleted your thesis a minute ago. There is no snapshot, and no backup. Is it gone? And if it is
# still there, how long does it stay?

# %%
import pathlib
import tempfile

import btrfs_model as bm

folder = tempfile.TemporaryDirectory()
path = pathlib.Path(folder.name, "disk.img")
THESIS = b"chapter " * 17_500


def deleted():
    """A filesystem, and the last generation with the thesis."""
    fs = bm.create("256M", nodesize=4096, seed=1)
    fs.create_files("", [f"file{number:03}" for number in range(200)])
    fs.create("thesis")
    fs.write("thesis", 0, THESIS)
    fs.sync()
    last = fs.image.superblock.generation
    fs.unlink("thesis")
    fs.sync()
    return fs, last


fs, last = deleted()
fs.save(path)
print("with the thesis:", last)
print("now:", fs.image.superblock.generation)

# %% [markdown]
# ## What a commit leaves
#
# A commit writes new blocks, then a superblock that leads to them. The old blocks are freed, and that
# is a change of the count: nobody goes there and wipes them. We look at each place of the metadata
# where a tree block can be. A block says in its header which address it has, and which generation.


# %%
def lying(path):
    """Tree blocks that lie on the disk: address, generation."""
    found = {}
    with bm.open(path) as disk, path.open("rb") as file:
        size = disk.image.nodesize
        for chunk in disk.image.chunks:
            if chunk.type & 1:
                continue  # of data
            file.seek(chunk.stripes[0])
            for at in range(
                chunk.logical, chunk.logical + chunk.length, size
            ):
                head = file.read(size)[:88]
                if int.from_bytes(head[48:56], "little") == at:
                    found[at] = int.from_bytes(head[80:88], "little")
    return found


def in_use(fs):
    """Addresses of the blocks of all trees."""
    return {
        block.logical
        for tree in fs.trees.values()
        for block in tree.blocks()
    }


# %% [markdown]
# **Guess:** how many of the blocks that lie there does nobody use any more?

# %% tags=["hide-output"]
blocks = lying(path)
used = in_use(fs)
left = {at: one for at, one in blocks.items() if at not in used}
print("lie there:", len(blocks), "  used by nobody:", len(left))

# %% alt="Tree blocks by their address and their generation: those in use and those left over from earlier commits lie mixed; the newest generation lies behind the others and has none left over." tags=["hide-input"]
import matplotlib.pyplot as plt

(group,) = [one for one in fs.image.chunks if one.type & 4]
figure, panel = plt.subplots(figsize=(9, 2.8), layout="constrained")
for label, some, style in (
    ("in use", used, {"color": "#1b6ca8"}),
    ("left over", left, {"color": "none", "edgecolor": "#b4540a"}),
):
    shown = [at for at in some if at >= group.logical]
    panel.scatter(
        [(at - group.logical) // 4096 for at in shown],
        [blocks[at] for at in shown],
        label=label,
        s=30,
        **style,
    )
panel.set_yticks([5, 6, 7, 8])
panel.set_xlabel("place in the block group, in blocks of 4 KiB")
panel.set_ylabel("generation")
panel.legend(loc="upper left")
# %% tags=["claims", "hide-input"]
# what the text says
assert used <= blocks.keys() and len(left) > 10

# %% [markdown]
# ## Older roots
#
# With blocks alone one cannot do much; one needs a root. The superblock remembers the roots of the last
# four commits, as **backup roots**. Where these end, a **scan** helps: to read the whole disk, and take
# each block that looks like the root of a tree of roots.

# %%
states = bm.rescue_roots(path)
states[["generation", "source", "state"]]

# %% tags=["claims", "hide-input"]
# what the text says; a commit's own root is one of the four
backups = fs.image.superblock.backups
assert len(backups) == 4
assert sorted(one.tree_root_gen for one in backups) == [5, 6, 7, 8]
assert fs.image.superblock.generation == 8

# %% [markdown]
# A state is `whole` if the trees of it can be read from their roots to their leaves. That of the thesis
# is. So we read everything as it was then.

# %%
saved = pathlib.Path(folder.name, "saved")
rescued = bm.rescue(path, saved, root=last)
print(rescued.files, "files;", len(rescued.table), "of them damaged")
print("the thesis:", (saved / "thesis").read_bytes() == THESIS)

# %% tags=["claims", "hide-input"]
# what the text says
assert states.set_index("generation").loc[last, "state"] == "whole"
assert rescued.files == 201 and rescued.table.empty
assert (saved / "thesis").read_bytes() == THESIS

# %% [markdown]
# In a shell this is `btrfs-model rescue disk.img --root 7 -o saved`, and `--roots` lists the states. A
# kernel can do it too, if the root it wants is broken: `mount -o ro,rescue=usebackuproot` takes the
# newest backup root that it can read.
#
# ## How long?
#
# What is freed may be written to after the commit. So the old state is lost as soon as a new block is
# put on one of its own.


# %%
def commits(fs, last, most, after=lambda fs: fs):
    """After how many commits is a block of the old state lost."""
    fs.save(path)
    mine = {
        at
        for at, generation in lying(path).items()
        if generation <= last
    }
    for number in range(1, most + 1):
        fs = after(fs)
        mode = 0o600 + number // 200 % 2 * 4
        fs.chmod(f"file{number % 200:03}", mode)
        fs.sync()
        newest = fs.image.superblock.generation
        if any(
            block.generation == newest and block.logical in mine
            for tree in fs.trees.values()
            for block in tree.blocks()
        ):
            return number
    return None


# %% [markdown]
# **Guess:** we go on working: a `chmod` and a commit, again and again. How many commits does it take?

# %% tags=["hide-output"]
fs, last = deleted()
going_on = commits(fs, last, 3000)
print(f"a block is written over by commit number {going_on:,}")

# %% [markdown]
# That is long. A kernel looks for room from where it found some the last time, and goes on through the
# block group to its end; these commits took five blocks each, and the group has 8,192. If there is one
# commit every 30 seconds, that makes half a day. (With more work in a commit it is less.)

# %% tags=["claims", "hide-input"]
# what the text says; 4: the profile's bit of metadata
(group,) = [one for one in fs.image.chunks if one.type & 4]
assert group.length // 4096 == 8192
newest = fs.image.superblock.generation
written = [
    block
    for tree in fs.trees.values()
    for block in tree.blocks()
    if block.generation == newest
]
assert len(written) == 5
assert 0.9 * 8192 < 5 * going_on < 8192
assert 12 < going_on * 30 / 3600 < 15

# %% [markdown]
# **Guess:** and if the filesystem is unmounted and mounted again before each of them?


# %% tags=["hide-output"]
def mounted_again(fs):
    """Unmount, and mount."""
    fs.save(path)
    fs.close()
    return bm.load(path)


fs, last = deleted()
again = commits(fs, last, 50, mounted_again)
print("a block is written over by commit number", again)

# %% [markdown]
# At once. A kernel that has just mounted knows nothing of the last time, and takes the first room that
# it finds, and there the old state is. So when you have deleted something: unmount, and do not
# mount again, not even to look, except with `ro`.
#
# And this was about tree blocks. Where do the bytes of the next file go?

# %% tags=["claims", "hide-input"]
# what the text says
assert again <= 3 < going_on / 100

# %% [markdown]
# **Guess:** a new file is written, as long as the thesis. What does the rescue give?

# %% tags=["hide-output"]
fs, last = deleted()
fs.create("novel")
fs.write("novel", 0, b"kiss " * 28_000)
fs.sync()
fs.save(path)
new_place = fs.subvolume("").extents("novel")[0].disk_bytenr
after = bm.rescue(path, root=last)
print(bm.rescue_roots(path).set_index("generation")["state"][last])
for row in after.table.itertuples():
    print(f"{row.path}: {row.problem}")

# %% [markdown]
# The tree is whole, with the name, the size and the address. The bytes are those of the novel: data go
# to the first gap that fits, and here that is the one that the thesis left. The checksums of its time
# say so, and no wrong byte is given out.

# %% tags=["claims", "hide-input"]
# what the text says
states = bm.rescue_roots(path).set_index("generation")["state"]
assert states[last] == "whole"
assert list(after.table["path"]) == ["thesis"]
assert "140000 bytes are lost" in after.table["problem"].iloc[0]
assert len(THESIS) == 140_000

# %% [markdown]
# ## Discard
#
# A flash drive wants to know what is free, to have room at hand; what it returns for that from then
# on are zeros, as a rule. To tell it is to **discard**. With the mount option `discard` that is
# done at each commit, with `discard=async`, the default on such a drive since Linux 6.2, a little
# later. We play it: zeros, wherever the free space tree has a gap.


# %%
def discard(fs, path):
    """Write zeros over what is free."""
    fs.save(path)
    with path.open("r+b") as file:
        file.seek(64 << 20)
        kept = file.read(4096)
        for item in fs.tree(10).items():
            if item.key.type != 199:  # FREE_SPACE_EXTENT
                continue
            start, _, length = item.key
            for chunk in fs.image.chunks:
                if 0 <= start - chunk.logical < chunk.length:
                    for stripe in chunk.stripes:
                        file.seek(stripe + start - chunk.logical)
                        file.write(bytes(length))
        # a drive is never told that a superblock is free
        file.seek(64 << 20)
        file.write(kept)


# %% [markdown]
# **Guess:** how many states are whole then?

# %% tags=["hide-output"]
fs, last = deleted()
fs.save(path)
before = bm.rescue_roots(path)
discard(fs, path)
after = bm.rescue_roots(path)
whole = [
    int((one["state"] == "whole").sum()) for one in (before, after)
]
print("states that are whole, before and after:", *whole)

# %% [markdown]
# The present one. On a flash drive, rescue is a matter of seconds.

# %% tags=["claims", "hide-input"]
# what the text says
assert whole[0] > 1 == whole[1]
assert not bm.check(path)

# %% [markdown]
# ## A damaged tree
#
# So much for what was deleted. Now the disk itself is broken. We destroy one leaf of the tree of files,
# both copies of it. What is lost?


# %%
def destroyed(fs, logical):
    """An image in which a tree block is gone, both copies."""
    fs.save(path)
    with path.open("r+b") as file:
        for copy in (0, 1):
            file.seek(fs.image.map(logical, copy)[0])
            file.write(b"\xff" * 4096)
    return path


fs = deleted()[0]
leaves = [
    block
    for block in fs.subvolume("").tree.blocks()
    if block.level == 0
]
middle = leaves[len(leaves) // 2].logical
print(len(leaves), "leaves,", len(fs.listing(5)) - 1, "files")

# %% [markdown]
# **Guess:** how many of the 200 files are lost?

# %% tags=["hide-output"]
hurt = bm.rescue(destroyed(fs, middle))
inodes = hurt.table[hurt.table["problem"] == "its inode is lost"]
print("files rescued:", hurt.files, "  lost:", len(inodes))
hurt.table[["kind", "path", "problem"]].head(4)

# %% [markdown]
# Those whose inodes were in the leaf; their names are known, from the leaves of the directory. (In a
# kernel they have names, too, and EIO for whoever opens them.) An older root may have another block in
# the place of the lost one, or only the lost one, as here: then it has lost the same. The rescue names
# the newest root that is whole, and does not mix it with this one: a file of today with bytes of
# yesterday would be a lie.

# %% tags=["claims", "hide-input"]
# what the text says
states = bm.rescue_roots(path).set_index("generation")["state"]
assert states[8] == states[7] == "1 tree block is lost"
assert states[6] == "whole"
assert "an older root, of generation 6" in hurt.table["problem"][0]
assert hurt.root.startswith("generation 8,")

# %% [markdown]
# **Guess:** and if the root of the tree of roots is lost, through which all the others are found?

# %% tags=["hide-output"]
root = fs.image.superblock.root
lost = bm.rescue(destroyed(fs, root))
print("files rescued:", lost.files)
for row in lost.table.itertuples():
    print(row.problem.split(" (")[0], "...")
print("it was taken:", lost.root)

# %% [markdown]
# More than there were: the root before that has the thesis still. The newest root that can be used is
# taken, and a row of the table says so.

# %% tags=["claims", "hide-input"]
# what the text says
assert len(fs.listing(5)) == 201  # with the directory
assert hurt.files + len(inodes) == 200 and 0 < len(inodes) < 40
assert lost.files == 201
assert lost.root == f"generation {last}, backup 2"

# %% [markdown]
# ## Is this what a kernel does?
#
# This disk was written by a kernel, and its history is still on it. We rescue all of its states.

# %%
sample = bm.sample("kernel/features/nodesize-4096")
history = {}
for state in bm.rescue_roots(sample).itertuples():
    if state.state == "whole":
        there = bm.rescue(sample, root=state.generation)
        history[state.generation] = there.files
        print(
            f"generation {state.generation:2}, {state.source}:",
            f"{there.files} files",
        )

# %% [markdown]
# Read it from below: an empty filesystem, the first files, a tree of them, and the same again, as a
# snapshot was taken.
#
# We also had Linux 6.18.44 go through the story of the thesis, on a disk without discard. It wrote over
# the first block of the old state by commit number 1,627, as the model, and put the novel where the
# thesis had been. After 60 commits 63 states were whole, in both. With a mount before each commit the
# old state was lost by the third. With `discard` one state was whole; with `discard=async` the bytes of
# the thesis were gone after 15 seconds, and the trees were there for minutes. And when we had destroyed
# the root of the tree of roots, it refused to mount; with `rescue=usebackuproot` it mounted, and there
# was the thesis.

# %% tags=["claims", "hide-input"]
# what the text says, as far as the model can say it
assert list(history.values()) == [260, 260, 130, 6, 0]
fs, last = deleted()
for number in range(60):
    fs.chmod(f"file{number:03}", 0o600)
    fs.sync()
fs.save(path)
states = bm.rescue_roots(path)
assert (states["state"] == "whole").sum() == 63
assert going_on == 1627 and again <= 3
(group,) = [one for one in fs.image.chunks if one.type == 1]
assert new_place == group.logical  # where the first file was
assert whole[1] == 1

# %% [markdown]
# ## Exercises
#
# **Exercise 1.** Which backup roots can still be of use? Let `usable(fs)` return the list of
# generations (`backup.tree_root_gen` of `fs.image.superblock.backups`) for which the block at
# `backup.tree_root` still has the generation that it should have. `fs.image.block(address)` returns
# the bytes of a block; its generation is at byte 80, eight bytes long. Of a place where no tree block
# is, it raises `bm.BtrfsModelError`.
#
# <details><summary>A solution</summary>
#
# ```python
# def usable(fs):
#     found = []
#     for backup in fs.image.superblock.backups:
#         try:
#             block = fs.image.block(backup.tree_root)
#         except bm.BtrfsModelError:
#             continue
#         generation = int.from_bytes(block[80:88], "little")
#         if generation == backup.tree_root_gen:
#             found.append(generation)
#     return found
# ```
# </details>


# %% tags=["exercise"]
def usable(fs): ...  # yours


# %% tags=["check", "hide-input"]
from btrfs_model.base.exercises import judge


@judge
def wrong():
    for mounts, is_discarded in ((0, False), (3, False), (0, True)):
        one, _ = deleted()
        for number in range(mounts):
            one = mounted_again(one)
            one.chmod(f"file{number:03}", 0o600)
            one.sync()
        one.save(path)
        if is_discarded:
            discard(one, path)
        one.close()
        there = lying(path)
        with bm.open(path) as disk:
            right = {
                backup.tree_root_gen
                for backup in disk.image.superblock.backups
                if there.get(backup.tree_root) == backup.tree_root_gen
            }
            said = usable(disk)
        if sorted(said) != sorted(right):
            what = "a discard" if is_discarded else f"{mounts} mounts"
            return f"after {what} it returns {said}"
    return None


# %% [markdown]
# **Exercise 2.** Let `undelete(path, name)` return the bytes of the file `name` of the top directory,
# from the newest state in which it is there and undamaged; or `None`. `bm.rescue_roots(path)` lists the
# states, the newest first; `bm.rescue(path, folder, root=generation)` writes one into a new folder, and
# its `table` has in the column `path` what is damaged.
#
# <details><summary>A solution</summary>
#
# ```python
# def undelete(path, name):
#     for state in bm.rescue_roots(path).itertuples():
#         if state.state != "whole":
#             continue
#         with tempfile.TemporaryDirectory() as folder:
#             to = pathlib.Path(folder, "to")
#             there = bm.rescue(path, to, root=state.generation)
#             if name in set(there.table["path"]):
#                 continue
#             if (to / name).is_file():
#                 return (to / name).read_bytes()
#     return None
# ```
# </details>


# %% tags=["exercise"]
def undelete(path, name): ...  # yours


# %% tags=["check", "hide-input"]
@judge
def wrong():
    with bm.create("256M", nodesize=4096, seed=9) as one:
        written = {"never": []}
        for number in range(2):
            name = f"poem{number}"
            one.create(name)
            for text in ("draft ", "a poem "):
                data = text.encode() * (900 + number)
                one.write(name, 0, data)
                one.sync()
                extent = one.subvolume("").extents(name)[0]
                at, _ = one.image.map(extent.disk_bytenr)
                written.setdefault(name, []).insert(0, (at, data))
        for number in range(2):
            one.unlink(f"poem{number}")
            one.sync()
        one.create("film")
        one.write("film", 0, b"f" * 8192)
        one.sync()
        one.save(path)
    disk = path.read_bytes()
    for name, versions in written.items():
        there = (
            data
            for at, data in versions
            if disk[at : at + len(data)] == data
        )
        right = next(there, None)
        said = undelete(path, name)
        if said != right:
            length = (
                "nothing" if said is None else f"{len(said)} bytes"
            )
            return f"of {name} it returns {length}"
    return None


# %% [markdown]
# Next: [16](16-other-designs.ipynb).
