# %% [markdown]
# # 07 · fsync, log trees and their replay
#
# A commit writes all tree blocks that have changed, of every file. A database that has changed one row
# wants *that* on the disk, at once, a thousand times a second. `fsync` promises it. How, without a
# commit?

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
# that would be lost. The addresses of the log trees are in a tree of their own, the **log root
# tree**, as those of other trees are in the root tree. `fsync` writes both, and puts the address of
# the log root tree into the superblock; what the last commit wrote stays where it is. (Bytes of the
# file that do not fit into the log are written before, to an extent that the log refers to.)
#
# **Guess:** we write to one file of twenty, and fsync it. How many items will the log have?

# %% tags=["hide-output"]
committed = {number: tree.bytenr for number, tree in fs.trees.items()}
fs.write("file07", 0, b"a row of a table")
said = fs.fsync("file07")
fs.save_crash(path)
crashed = bm.open(path)
(log,) = crashed.log_trees.values()
print(said)
for item in log.items():
    print(item.key, len(item.data), "bytes")

# %% [markdown]
# The inode, its name and its data, and none of the other files. Here is the log beside the tree that
# it belongs to. They share nothing: the log is written next to it.

# %% tags=["claims", "hide-input"]
# what the text says; the tree -6 is the log root tree
assert said == "log" and len(list(log.items())) == 3
log_root = crashed.log_root_tree
assert log_root.bytenr == crashed.image.superblock.log_root
((key, root_item),) = [
    (item.key, bytes(item.data)) for item in log_root.items()
]
assert int.from_bytes(root_item[176:184], "little") == log.bytenr
assert (
    committed.items()
    <= {
        number: tree.bytenr for number, tree in crashed.trees.items()
    }.items()
)
mine = {
    block.logical for block in crashed.subvolume("").tree.blocks()
}
assert not mine & {block.logical for block in log.blocks()}

# %% [markdown]
# The two side by side:

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
assert not recovered.log_trees

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
fs.save_crash(path)
crashed = bm.open(path)
(log,) = crashed.log_trees.values()
for item in log.items():
    if item.key.type == 72:
        end = int.from_bytes(item.data, "little")
        print(f"DIR_LOG_INDEX {item.key.offset} to {end}")
    if item.key.type == 96:
        print(f"DIR_INDEX {item.key.offset}")

# %%
entries = bm.replay_log(crashed).subvolume("").readdir("")
names = {entry.name.decode() for entry in entries}
print("file03" in names, "file12" in names, "new" in names)
assert not names & {"file03", "file12"} and "new" in names

# %% [markdown]
# So who zeroes a log loses all of this. `bm.explain_log` mounts the image as each kernel would, and
# says what that brings:

# %%
told = bm.explain_log(crashed)
print(told.replays[["kernels", "outcome", "changes"]])
(brought,) = told.changes.values()
assert sorted(brought["change"]) == [
    "added",
    "changed",
    "removed",
    "removed",
]
brought[["change", "path"]]

# %% [markdown]
# ## When a log is not enough
#
# Some things are too hard to say in a log. A file moves from one directory to another. The old
# directory has lost a name, and its log would say so; but it would not say where the file is now, and
# a replay of that log alone would lose it. So an `fsync` of that directory, or of the file, commits.
# A new name in the same directory is no such thing. The answer of the model says which it was.

# %%
fs.sync()
fs.mkdir("a")
fs.create("a/f")
first = fs.fsync("a/f")
print("a new file in a new directory:", first)
fs.sync()
fs.rename("a/f", "a/g")
second = fs.fsync("a/g")
print("another name in the same directory:", second)
fs.sync()
fs.rename("a/g", "g")
third = fs.fsync("g")
print("a name in another directory:", third)
assert (first, second, third) == ("log", "log", "commit")

# %% [markdown]
# Why? Linux 7.2 tells each of these decisions by *tracepoints*, and the model tells the same ones.
# Below, each function stands under the one that calls it. The file is logged; then the directory that
# it left (`log_all_parents`), and of that one no log can be made.

# %%
fs.sync()
fs.rename("g", "a/h")
with fs.trace() as trace:
    fs.fsync("a/h")
decided = trace.table
assert decided.ret.tolist().count("a commit is needed") == 3
decided[["event", "ino", "ret"]]

# %% [markdown]
# ## Is this what a kernel does?
#
# Linux 6.1 made a directory of 20 files and committed, deleted five of them, called fsync for the
# directory, and lost power. We have the disk after the crash, and the same disk after the kernel's
# own mount. We replay the first, and compare file by file.

# %%
at_crash = bm.open(bm.sample("kernel/log/nd/nd_20_5/6.1/crash2"))
by_kernel = bm.open(bm.sample("kernel/log/nd/nd_20_5/6.1/replayed2"))
by_model = bm.replay_log(at_crash, behaviour="v6.1.176")


def files(one):
    """Everything about the files that a user can see."""
    columns = ["path", "ino", "mode", "nlink", "size", "sha256"]
    return one.listing("")[columns]


same = files(by_kernel).equals(files(by_model))
print(len(files(by_kernel)), "files and directories; the same:", same)
assert same and len(files(by_kernel)) == 2 + 20 - 5

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


# %% tags=["check", "hide-input"]
from btrfs_model.base.exercises import judge


@judge
def wrong():
    for names in ([], ["b"], ["a", "c"], ["a", "b", "c"]):
        image = pathlib.Path(folder.name, "one.img")
        with bm.create("256M", seed=2) as one:
            one.create_files("", ["a", "b", "c"])
            one.sync()
            right = {
                one.subvolume("").resolve(name) for name in names
            }
            for name in names:
                one.write(name, 0, b"changed")
                one.fsync(name)
            one.save_crash(image)
        with bm.open(image) as one:
            if (said := logged(one)) != right:
                return f"after an fsync of {names} it returns {said}"
    return None


# %% [markdown]
# **Exercise 2.** Editors save a file so: write a new one, fsync it, rename it to the name that it
# should have. Why the fsync? Let `saved(content, with_fsync, replaces)` do that, crash, mount
# (`bm.replay_log`) and return what the file `text` holds then:
#
# - if `replaces`, there is a file `text` with other bytes before, and it is synced;
# - `text.new` is made and `content` written to it, with or without an fsync;
# - it is renamed to `text`;
# - `commit()`: a commit as the kernel does it by itself, every 30 seconds. Names are in it at once,
#   but bytes of files wait in memory for their own turn.
#
# In which of the four cases are the bytes lost?
#
# <details><summary>A solution</summary>
#
# ```python
# def saved(content, with_fsync, replaces):
#     with bm.create("256M", seed=1) as one:
#         if replaces:
#             one.create("text")
#             one.write("text", 0, b"other bytes")
#         one.sync()
#         one.create("text.new")
#         one.write("text.new", 0, content)
#         if with_fsync:
#             one.fsync("text.new")
#         one.rename("text.new", "text")
#         one.commit()
#         image = pathlib.Path(folder.name, "two.img")
#         one.save_crash(image)
#     return bm.replay_log(bm.open(image)).read_file("", "text")
# ```
#
# Without the fsync, and where no file was replaced: the name is committed, and the file is empty.
# Where a file that is not empty is replaced, the rename has btrfs begin to write the new bytes, as so
# many programs forget the fsync. It does not wait for them, as the fsync does: with that they are
# safe in any case.
# </details>


# %% tags=["exercise"]
def saved(content, with_fsync, replaces): ...  # yours


# %% tags=["check", "hide-input"]
import warnings


@judge
def wrong():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that bytes wait
        for content in (b"new", b"newer"):
            for with_fsync, replaces in (
                (True, True),
                (True, False),
                (False, True),
                (False, False),
            ):
                right = content if with_fsync or replaces else b""
                said = saved(content, with_fsync, replaces)
                if said != right:
                    what = f"{content=}, {with_fsync=}, {replaces=}"
                    return f"with {what} it returns {said}"
    return None


# %% [markdown]
# Next: [08](08-send.ipynb).
