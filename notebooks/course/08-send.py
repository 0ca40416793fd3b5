# %% [markdown]
# # 08 · Send and receive
#
# A backup of a filesystem every night: most of it has not changed. To find what has, must one read
# all of it? Two snapshots that share blocks say no.

# %%
import btrfs_model as bm

fs = bm.create("1G", nodesize=4096, seed=1)
fs.create_subvolume("home")
fs.mkdir("home/docs")
for number in range(300):
    fs.create(f"home/docs/note{number:03}")
    fs.write(
        f"home/docs/note{number:03}", 0, f"note {number}".encode()
    )
fs.snapshot("home", "monday")

# %% [markdown]
# ## A stream of commands
#
# `send` turns a snapshot into a **stream**: a list of commands such as "make a file", "rename it",
# "write these bytes". `receive` carries them out, mostly on another filesystem. What is sent must not
# change meanwhile: the snapshot has to be one that cannot be written to, as `btrfs subvolume snapshot
# -r` makes it. `fs.snapshot` makes such ones if it is not told otherwise.

# %%
full = bm.send(fs, "monday")
print(f"{full.size:,} bytes:", full.commands)
for number, command in enumerate(bm.read_stream(full.data)):
    if number in range(8, 15):
        print(command.name)
        for name, value in command.attributes.items():
            print(
                "   ", name, bytes(value) if name == "data" else value
            )

# %% tags=["claims", "hide-input"]
# what the text says
read_only = fs.subvolumes().set_index("path")["read_only"]
assert read_only["monday"] and not read_only["home"]
try:
    bm.send(fs, "home")
except OSError as error:
    refused = error.strerror
assert "not read-only" in refused

# %% [markdown]
# Files are made under a name that no one else has, and renamed then: so the order of the commands
# can be that of the inode numbers, whatever the names. (A directory that is needed earlier is made
# before its turn.)
#
# ## The difference
#
# Now we change three files, and take a second snapshot. An **incremental** send compares both and
# sends what differs.
#
# **Guess:** how many of the tree blocks can it pass over without a look?

# %% tags=["hide-output"]
fs.write("home/docs/note100", 0, b"changed")
fs.unlink("home/docs/note200")
fs.rename("home/docs/note250", "home/docs/moved")
fs.snapshot("home", "tuesday")
blocks = {
    name: {
        block.logical for block in fs.subvolume(name).tree.blocks()
    }
    for name in ("monday", "tuesday")
}
difference = bm.send(fs, "tuesday", parent="monday", explain=True)
shared = blocks["monday"] & blocks["tuesday"]
print(f"{len(blocks['monday'])} blocks, {len(shared)} of them shared")
print(f"{difference.size:,} bytes:", difference.commands)
assert len(shared) > len(blocks["monday"]) / 2

# %% [markdown]
# The two trees share most of their blocks, and a shared block cannot differ: at the same address
# are the same bytes. So whatever is below a shared block is passed over. What is left is compared
# item by item. Here are the items that differ, and the commands that each causes.

# %%
bm.draw(difference)

# %% [markdown]
# A send says what has to be done to get from one to the other. What changed, as people mean it, says
# `bm.diff`, by path and by content:

# %%
changed = bm.diff(fs, "monday", "tuesday")
assert set(changed["change"]) == {"changed", "removed", "renamed"}
changed[["change", "path", "was", "size_before", "size"]]

# %% [markdown]
# ## Received
#
# The other side has Monday's snapshot, from the first stream. The second one turns a copy of it
# into Tuesday's.

# %%
other = bm.create("1G", seed=2)
bm.receive(other, full.data)
bm.receive(other, difference.data)


def files(one, name):
    """Paths, sizes and contents."""
    listing = one.listing(name)[["path", "size", "sha256"]]
    return listing.sort_values("path").reset_index(drop=True)


same = files(fs, "tuesday").equals(files(other, "tuesday"))
print("the same:", same)
assert same

# %% [markdown]
# Stored streams can be looked into without another side. They are received in memory, in their
# order; the second one alone has no parent there:

# %%
with bm.stored_streams(full.data, difference.data) as stored:
    print(stored.table[["snapshot", "parent", "complete"]])
    assert files(stored.fs, "tuesday").equals(files(fs, "tuesday"))
with bm.stored_streams(difference.data) as alone:
    (problem,) = alone.problems
    print(problem)
assert "cannot find parent" in problem

# %% [markdown]
# ## What it costs
#
# The model counts what the kernel's functions do. Compare the full stream with the difference.

# %%
for name, sent in (("full", full), ("difference", difference)):
    searches = sent.work["btrfs_search_slot"]
    print(f"{name:10} {searches:6,} searches, {sent.size:7,} bytes")

# %% [markdown]
# ## Is this what a kernel does?
#
# The streams of this model are those of Linux byte for byte: the project's tests compare them with
# recorded ones. Here is one that you can make yourself where btrfs is mounted: save the image,
# mount it, run `btrfs send monday`, and compare. What can be seen here is that the model's streams of
# three kernels bring the same files.

# %%
kernel = bm.open(bm.sample("kernel/send/send-truncate/n500"))
sizes = {}
for release in ("v4.16", "v6.1", "v6.18"):
    stream = bm.send(kernel, "snap", behaviour=release)
    with bm.create("1G", seed=1) as target:
        bm.receive(target, stream.data)
        equal = files(kernel, "snap").equals(files(target, "snap"))
    sizes[release] = sum(stream.commands.values())
    print(
        f"{release}: {stream.size:,} bytes,",
        f"{sizes[release]:,} commands",
    )
    assert equal

# %% [markdown]
# The old kernel sends more commands. That is the first of the five patches that have notebooks of
# their own: [a truncate that nobody needed](../send-truncate.ipynb).

# %% tags=["claims", "hide-input"]
# what the text says
assert sizes["v4.16"] > sizes["v6.1"] > sizes["v6.18"]

# %% [markdown]
# ## Exercises
#
# **Exercise 1.** Let `commands_for(stream, path)` return the names of the commands of a stream that
# are about a path (`command.attributes["path"]`, as bytes), in order.
#
# <details><summary>A solution</summary>
#
# ```python
# def commands_for(stream, path):
#     return [
#         command.name
#         for command in bm.read_stream(stream)
#         if bytes(command.attributes.get("path", b"")) == path
#     ]
# ```
# </details>


# %% tags=["exercise"]
def commands_for(stream, path): ...  # yours


# %% tags=["check", "hide-input"]
from btrfs_model.base.exercises import judge


@judge
def wrong():
    for stream, path, right in (
        (difference.data, b"docs/note100", ["write", "utimes"]),
        (difference.data, b"docs/note200", ["unlink"]),
        (
            full.data,
            b"docs/note003",
            ["write", "chown", "chmod", "utimes"],
        ),
        (full.data, b"not there", []),
    ):
        if (said := commands_for(stream, path)) != right:
            what = (
                "the full stream"
                if stream is full.data
                else "the difference"
            )
            return f"of {path} in {what} it returns {said}"
    return None


# %% [markdown]
# **Exercise 2.** What does the stream say of a file that was only renamed? Let `renamed(old, new,
# size)` make a filesystem with one file of that size, take a snapshot, rename the file, take
# another, and return the size of the incremental stream. On what does it depend?
#
# <details><summary>A solution</summary>
#
# ```python
# def renamed(old, new, size):
#     with bm.create("256M", seed=1) as one:
#         one.create(old)
#         one.write(old, 0, b"f" * size)
#         one.snapshot("", "s1")
#         one.rename(old, new)
#         one.snapshot("", "s2")
#         return bm.send(one, "s2", parent="s1").size
# ```
#
# On the lengths of the names, and not on that of the file: a megabyte is moved in less than a
# kilobyte.
# </details>


# %% tags=["exercise"]
def renamed(old, new, size): ...  # yours


# %% tags=["check", "hide-input"]
@judge
def wrong():
    for old, new, size in (
        ("f", "g", 1 << 20),
        ("f", "g", 100),
        ("a-long-name", "another-long-name", 5000),
    ):
        with bm.create("256M", seed=3) as one:
            one.create(old)
            one.write(old, 0, b"c" * size)
            one.snapshot("", "s1")
            one.rename(old, new)
            one.snapshot("", "s2")
            right = bm.send(one, "s2", parent="s1").size
        if (said := renamed(old, new, size)) != right:
            return f"for {old!r}, {new!r}, {size} it returns {said}"
    return None


# %% [markdown]
# Next: [09](09-reading-ahead.ipynb).
