# %% [markdown]
# # 07 · fsync, log trees and their replay
#
# A commit writes all that has changed, everywhere. A database that has changed one row wants *that*
# on the disk, at once, a thousand times a second. `fsync` promises it. How, without a commit?

# %%
import pathlib
import tempfile

import btrfs_model as bm

folder = tempfile.TemporaryDirectory()
path = pathlib.Path(folder.name, "crashed.img")
fs = bm.create("256M", seed=1)
fs.create_files("", [f"file{number:02}" for number in range(20)])
fs.sync()

# %% [markdown]
# ## The log tree
#
# Each subvolume can have a second, small tree: its **log tree**. `fsync` copies into it the items
# that would be lost, writes its blocks, and puts its address into the superblock. That is all: no
# other tree is written.
#
# **Guess:** we write to one file of twenty, and fsync it. How many items will the log have?

# %%
fs.write("file07", 0, b"a row of a table")
said = fs.fsync("file07")
path.write_bytes(fs.crash())
crashed = bm.open(path)
(log,) = crashed.log_trees.values()
print(said)
for item in log.items():
    print(item.key, len(item.data), "bytes")

# %% [markdown]
# The inode, its name and its data: three of them, and none of the other files. Here is the log
# beside the tree that it belongs to. They share nothing: the log is written next to it.

# %%
bm.draw([crashed.subvolume(""), log])

# %% [markdown]
# ## Replay
#
# After a crash the next mount finds the log and carries its items over into the subvolume: it is
# **replayed**. Then comes a commit, and the log is gone.

# %%
print("before:", crashed.read_file("", "file07"))
recovered = bm.replay_log(crashed)
print("after: ", recovered.read_file("", "file07"))

# %% [markdown]
# ## What was deleted
#
# A log of items can say what there is. How does it say what there is no more? When a directory is
# logged, ranges are logged with it: "between these two numbers I have told you all". An entry of
# the subvolume in such a range that the log does not have was deleted.

# %%
fs.sync()
fs.unlink("file03")
fs.unlink("file12")
fs.create("new")
fs.fsync("")
path.write_bytes(fs.crash())
crashed = bm.open(path)
(log,) = crashed.log_trees.values()
for item in log.items():
    if item.key.type in (60, 72, 96):
        kind = {60: "DIR_LOG_ITEM", 72: "DIR_LOG_INDEX", 96: "DIR_INDEX"}[item.key.type]
        end = int.from_bytes(item.data, "little") if item.key.type != 96 else None
        print(f"{kind} {item.key.offset}" + (f" to {end}" if end is not None else ""))

# %%
names = {e.name.decode() for e in bm.replay_log(crashed).subvolume("").readdir("")}
print("file03" in names, "file12" in names, "new" in names)

# %% [markdown]
# ## When a log is not enough
#
# Some things are too hard to say in a log, such as an fsync after a rename that took the place of
# another file, or in a transaction that did much else. Then `fsync` commits. The answer of the
# model says which it was.

# %%
fs.sync()
fs.mkdir("a")
fs.create("a/f")
print("a new file in a new directory:", fs.fsync("a/f"))
fs.sync()
fs.rename("a/f", "g")
fs.rename("a", "b")
fs.create("a-new")
print("after renames:", fs.fsync("g"))

# %% [markdown]
# ## Is this what a kernel does?
#
# Linux 6.1 made a directory of 20 files, deleted and made others, called fsync, and lost power. We
# have the disk after the crash, and the same disk after the kernel's own mount. We replay the
# first, and compare file by file.

# %%
at_crash = bm.open(bm.sample("kernel/log/nd/nd_20_5/6.1/crash2"))
by_kernel = bm.open(bm.sample("kernel/log/nd/nd_20_5/6.1/replayed2"))
by_model = bm.replay_log(at_crash, behaviour="v6.1.176")


def files(one):
    """Everything about the files that a user can see."""
    return one.listing("")[["path", "ino", "mode", "nlink", "size", "sha256"]]


print(len(files(by_kernel)), "files; the same:", files(by_kernel).equals(files(by_model)))

# %% [markdown]
# ## Exercises
#
# **Exercise 1.** Let `logged(fs)` return the inode numbers that the log of a crashed filesystem
# speaks about, as a set: the objectids of the items of all `fs.log_trees`.
#
# <details><summary>A solution</summary>
#
# ```python
# def logged(fs):
#     return {item.key.objectid for log in fs.log_trees.values() for item in log.items()}
# ```
# </details>


# %% tags=["exercise"]
def logged(fs): ...  # yours


# %% tags=["check"]
with bm.create("256M", seed=1) as one:
    one.create_files("", ["a", "b", "c"])
    one.sync()
    one.write("b", 0, b"b")
    one.fsync("b")
    image = pathlib.Path(folder.name, "one.img")
    image.write_bytes(one.crash())
print("right" if logged(bm.open(image)) == {258} else "not yet")

# %% [markdown]
# **Exercise 2.** Editors save a file so: write a new one, fsync it, rename it over the old one. Why
# the fsync? Let `saved(with_fsync)` do that to a file `text` of the content `old`, with content
# `new`, crash right after the rename, mount (`bm.replay_log`), and return what `text` holds then.
#
# <details><summary>A solution</summary>
#
# ```python
# def saved(with_fsync):
#     with bm.create("256M", seed=1) as one:
#         one.create("text")
#         one.write("text", 0, b"old")
#         one.sync()
#         one.create("text.new")
#         one.write("text.new", 0, b"new")
#         if with_fsync:
#             one.fsync("text.new")
#         one.rename("text.new", "text")
#         image = pathlib.Path(folder.name, "two.img")
#         image.write_bytes(one.crash())
#     return bm.replay_log(bm.open(image)).read_file("", "text")
# ```
#
# It is `old` either way, and never a file of no bytes: the rename was not committed. With the fsync
# the new content is safe as `text.new`; and once the rename is committed, it is there for certain.
# </details>


# %% tags=["exercise"]
def saved(with_fsync): ...  # yours


# %% tags=["check"]
print("right" if (saved(False), saved(True)) == (b"old", b"old") else "not yet")

# %% [markdown]
# Next: [08](08-send.ipynb).
