# %% [markdown]
# # 09 · Reading ahead, and what a disk does
#
# All that we did so far was in memory. After a boot nothing is: each tree block has to be fetched
# when it is first needed. What does that cost, and what can a kernel do about it?

# %%
import btrfs_model as bm

fs = bm.create("1G", seed=1)
fs.mkdir("d")
fs.create_files("d", [f"file{number:05}" for number in range(10_000)])
fs.snapshot("", "snap")
tree = fs.subvolume("snap").tree
print(sum(block.level == 0 for block in tree.blocks()), "leaves")

# %% [markdown]
# ## A cold cache
#
# The kernel keeps tree blocks that it has read in memory, in a **cache**. A cache that is empty is
# called **cold**. `reads` says which blocks a send reads then, in what order, and which function of
# the kernel asked.

# %%
reads = bm.reads(fs, "snap", behaviour="v5.12")
reads.head(8)

# %% [markdown]
# ## What a disk does
#
# A disk that turns has an arm. It moves to the track, waits until the sector comes by, and reads.
# The move and the wait take some ten milliseconds; the reading of 16 KiB, a tenth of one. So what
# counts is not how much is read but how far apart it lies, and whether the disk knows what is
# wanted next.
#
# **Guess:** a send reads all leaves of this tree. How long does that take on a disk, when they lie
# in order? And on a solid state disk, which has no arm?

# %%
for device in ("deskstar-7k500", "samsung-850-evo", "samsung-970-evo"):
    table = bm.reads(fs, "snap", behaviour="v5.12", device=device)
    total, waited = (table.attrs[key] * 1000 for key in ("seconds", "waited"))
    print(f"{device:16} {total:4.0f} ms, of which the kernel waits {waited:4.0f} ms")

# %% [markdown]
# The rest of the time is the kernel's own work. Even on the fast device it waits: for one block
# after the other, and while it waits it does nothing else.
#
# ## Reading ahead
#
# While the kernel works on one block, the disk is idle. If the next one were asked for already,
# both could work at the same time: the kernel **reads ahead**. A send goes through the leaves in
# order, so it is easy to say what comes next: the blocks behind, in the same node. Since Linux 5.13
# a full send asks for the next ones always; before, only when they lay close together.

# %%
for release in ("v5.12", "v5.13"):
    table = bm.reads(fs, "snap", behaviour=release)
    ahead = int((table["kind"] == "ahead").sum())
    print(f"{release}: {len(table)} reads, {ahead} of them ahead, {len(table) - ahead} on demand")

# %% [markdown]
# ## Is this what a kernel does?
#
# The order of the reads was compared with what real kernels asked their disks for. Two things can
# be seen from here: every block is read once, and all that the tree has is read.

# %%
kernel = bm.open(bm.sample("kernel/reada/r5k"))
name = next(path for path in kernel.subvolumes()["path"] if path)
table = bm.reads(kernel, name, behaviour="v6.1.176")
wanted = {block.logical for block in kernel.subvolume(name).tree.blocks()}
print("every block once:", table["logical"].is_unique, "; all of the tree:",
      wanted <= set(table["logical"]))  # fmt: skip

# %% [markdown]
# How much is gained depends on where the blocks lie, on the disk, and on how far ahead one reads:
# [the notebook of that commit](../send-readahead.ipynb) goes on from here.
#
# ## Exercises
#
# **Exercise 1.** Let `waited(table)` return how many reads of a table were not ahead: their `kind`
# is `demand`.
#
# <details><summary>A solution</summary>
#
# ```python
# def waited(table):
#     return int((table["kind"] == "demand").sum())
# ```
# </details>


# %% tags=["exercise"]
def waited(table): ...  # yours


# %% tags=["check"]
print("right" if waited(reads) == len(reads) - int((reads["kind"] == "ahead").sum()) else "not yet")

# %% [markdown]
# **Exercise 2.** What if the kernel read further ahead? The limit is called `always_leaves`, in
# bytes. Let `waited_with(limit)` return `waited` for a send by v5.13 with that limit.
#
# <details><summary>A solution</summary>
#
# ```python
# def waited_with(limit):
#     return waited(bm.reads(fs, "snap", behaviour="v5.13", limits={"always_leaves": limit}))
# ```
# </details>


# %% tags=["exercise"]
def waited_with(limit): ...  # yours


# %% tags=["check"]
small, large = waited_with(16_384), waited_with(1 << 20)
print("right" if small is not None and small > large else "not yet")

# %% [markdown]
# Next: five commits of the kernel, each a case of its own. The first is [a truncate that nobody
# needed](../send-truncate.ipynb).
