# %% [markdown]
# # 08 · Send and receive
#
# A backup of a filesystem every night: most of it has not changed. To find what has, must one read
# all of it? Two snapshots and one b-tree property say no.

# %%
import btrfs_model as bm

fs = bm.create("1G", nodesize=4096, seed=1)
fs.create_subvolume("home")
fs.mkdir("home/docs")
for number in range(300):
    fs.create(f"home/docs/note{number:03}")
    fs.write(f"home/docs/note{number:03}", 0, f"note {number}".encode())
fs.snapshot("home", "monday")

# %% [markdown]
# ## A stream of commands
#
# `send` turns a snapshot into a **stream**: a list of commands such as "make a file", "rename it",
# "write these bytes". `receive` carries them out on another filesystem.

# %%
full = bm.send(fs, "monday")
print(f"{full.size:,} bytes:", full.commands)
for number, command in enumerate(bm.read_stream(full.data)):
    if number in range(8, 15):
        shown = {name: value for name, value in command.attributes.items() if name != "uuid"}
        print(command.name, shown)

# %% [markdown]
# Files are made under a name that no one else has, and renamed then: so the order of the commands
# can be that of the inode numbers, whatever the names.
#
# ## The difference
#
# Now we change three files, and take a second snapshot. An **incremental** send compares both and
# sends what differs.
#
# **Guess:** how many of the tree blocks can it pass over without a look?

# %%
fs.write("home/docs/note100", 0, b"changed")
fs.unlink("home/docs/note200")
fs.rename("home/docs/note250", "home/docs/moved")
fs.snapshot("home", "tuesday")
blocks = {
    name: {block.logical for block in fs.subvolume(name).tree.blocks()}
    for name in ("monday", "tuesday")
}
difference = bm.send(fs, "tuesday", parent="monday", explain=True)
print(f"{len(blocks['monday'])} blocks, {len(blocks['monday'] & blocks['tuesday'])} of them shared")
print(f"{difference.size:,} bytes:", difference.commands)

# %% [markdown]
# The two trees share most of their blocks, and a shared block cannot differ: at the same address
# are the same bytes. So whatever is below a shared block is passed over. What is left is compared
# item by item. Here are the items that differ, and the commands that each causes.

# %%
bm.draw(difference)

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
    return one.listing(name)[["path", "size", "sha256"]].sort_values("path").reset_index(drop=True)


print("the same:", files(fs, "tuesday").equals(files(other, "tuesday")))

# %% [markdown]
# ## What it costs
#
# The model counts what the kernel's functions do. Compare the full stream with the difference.

# %%
for name, sent in (("full", full), ("difference", difference)):
    print(f"{name:10} {sent.work['btrfs_search_slot']:6,} searches, {sent.size:7,} bytes")

# %% [markdown]
# ## Is this what a kernel does?
#
# The streams of this model are those of Linux byte for byte: the project's tests compare them with
# recorded ones. Here is one that you can make yourself where btrfs is mounted: save the image,
# mount it, run `btrfs send monday`, and compare. What can be seen here is that each kernel's stream
# brings the same files.

# %%
kernel = bm.open(bm.sample("kernel/send/send-truncate/n500"))
for release in ("v4.16", "v6.1", "v6.18"):
    stream = bm.send(kernel, "snap", behaviour=release)
    with bm.create("1G", seed=1) as target:
        bm.receive(target, stream.data)
        equal = files(kernel, "snap").equals(files(target, "snap"))
    print(f"{release}: {stream.size:,} bytes, {sum(stream.commands.values()):,} commands, {equal=}")

# %% [markdown]
# The old kernel sends more commands. That is the first of the five commits that have notebooks of
# their own: [a truncate that nobody needed](../send-truncate.ipynb).
#
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


# %% tags=["check"]
found = commands_for(difference.data, b"docs/note100")
print("right" if found and found[0] == "write" and found[-1] == "utimes" else "not yet")

# %% [markdown]
# **Exercise 2.** What does the stream say of a file that was only renamed? Let `renamed()` make a
# filesystem with one file of 1 MiB, take a snapshot, rename the file, take another, and return the
# size of the incremental stream.
#
# <details><summary>A solution</summary>
#
# ```python
# def renamed():
#     with bm.create("256M", seed=1) as one:
#         one.create("f")
#         one.write("f", 0, b"f" * (1 << 20))
#         one.snapshot("", "s1")
#         one.rename("f", "g")
#         one.snapshot("", "s2")
#         return bm.send(one, "s2", parent="s1").size
# ```
#
# A megabyte was moved in less than a kilobyte.
# </details>


# %% tags=["exercise"]
def renamed(): ...  # yours


# %% tags=["check"]
size = renamed()
print("right" if size is not None and size < 1000 else "not yet")

# %% [markdown]
# Next: [09](09-reading-ahead.ipynb).
