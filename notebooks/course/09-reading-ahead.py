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
reads[["logical", "level", "kind", "issued_by"]].head(8)

# %% [markdown]
# ## What a disk does
#
# A disk that turns has an arm. It moves to the track, waits until the place comes by, and reads.
# At 7200 turns a minute the wait alone is half a turn on average, more than 4 ms; the reading of
# 16 KiB takes less than half a millisecond. So what counts is less how much is read than how far
# apart it lies, and whether the disk knows what is wanted next.

# %% tags=["claims", "hide-input"]
# what the text says, of the disk that comes below
import tomllib

from btrfs_model.base.samples import data_folder

file = data_folder() / "devices/deskstar-7k500.toml"
disk = tomllib.loads(file.read_text())
turn = 60_000 / 7200  # milliseconds
assert disk["rpm"] == 7200 and turn / 2 > 4
on_track = [zone["sectors_per_track"] for zone in disk["zones"]]
assert turn * (16 << 10) / 512 / min(on_track) < 1 / 2

# %% [markdown]
# **Guess:** a send reads all leaves of this tree. How long does that take on a disk, when they lie
# in order? And on a solid state disk, which has no arm?

# %% tags=["hide-output"]
all_waited = {}
for device in (
    "deskstar-7k500",
    "samsung-850-evo",
    "samsung-970-evo",
):
    table = reads.on(device)
    total = table.attrs["seconds"] * 1000
    all_waited[device] = table.attrs["waited"] * 1000
    print(f"{device:16} {total:4.0f} ms,", end=" ")
    print(f"of which the kernel waits {all_waited[device]:4.0f} ms")
assert min(all_waited.values()) > 0

# %% [markdown]
# The rest of the time is the kernel's own work. Even on the fast device it waits: for one block
# after the other, and while it waits it does nothing else.
#
# ## Reading ahead
#
# While the kernel works on one block, it asks the disk for nothing. If it had asked for the next one
# already, both could work at the same time: the kernel **reads ahead**. A send goes through the
# leaves in order, so it is easy to say what comes next: the blocks behind, in the same node. Before
# Linux 5.13 a send read no tree block ahead. Two patches of that release changed it for a full send:
# by the first it asks for the next blocks where they lie close together, by the second wherever
# they lie.

# %%
aheads = []
for kernel in ("v5.12", "v5.13 - send-reada-always", "v5.13"):
    table = bm.reads(fs, "snap", behaviour=kernel)
    ahead = int((table["kind"] == "ahead").sum())
    aheads.append(ahead)
    print(
        f"{kernel}: {ahead} reads ahead,",
        f"{len(table) - ahead} on demand",
    )

# %% tags=["claims", "hide-input"]
# what the text says
assert aheads[0] == 0 < aheads[1] <= aheads[2]

# %% [markdown]
# ## Is this what a kernel does?
#
# The order of the reads was compared with what real kernels asked their disks for. Two things can
# be seen from here: every block is read once, and all that the tree has is read.

# %%
kernel = bm.open(bm.sample("kernel/reada/r5k"))
name = next(path for path in kernel.subvolumes()["path"] if path)
table = bm.reads(kernel, name, behaviour="v6.1.176")
wanted = {
    block.logical for block in kernel.subvolume(name).tree.blocks()
}
once = table["logical"].is_unique
complete = wanted <= set(table["logical"])
print("every block once:", once)
print("all of the tree:", complete)
assert once and complete

# %% [markdown]
# How much is gained depends on where the blocks lie, on the disk, and on how far ahead one reads:
# [the notebook of that patch](../send-readahead.ipynb) goes on from here.
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


# %% tags=["check", "hide-input"]
from btrfs_model.base.exercises import judge


@judge
def wrong():
    for release in ("v5.12", "v5.13", "v6.18"):
        table = bm.reads(fs, "snap", behaviour=release)
        if (said := waited(table)) != len(
            table[table["kind"] != "ahead"]
        ):
            return f"of reads of {release} it returns {said}"
    return None


# %% [markdown]
# **Exercise 2.** What if the kernel read further ahead? The limit is called `always_leaves`, in
# bytes. Let `waited_with(limit)` return `waited` for a send by v5.13 with that limit.
#
# <details><summary>A solution</summary>
#
# ```python
# def waited_with(limit):
#     limits = {"always_leaves": limit}
#     return waited(bm.reads(fs, "snap", behaviour="v5.13", limits=limits))
# ```
# </details>


# %% tags=["exercise"]
def waited_with(limit): ...  # yours


# %% tags=["check", "hide-input"]
@judge
def wrong():
    for limit in (16_384, 131_072, 1 << 20):
        limits = {"always_leaves": limit}
        table = bm.reads(fs, "snap", behaviour="v5.13", limits=limits)
        if (said := waited_with(limit)) != len(
            table[table["kind"] != "ahead"]
        ):
            return f"for a limit of {limit} bytes it returns {said}"
    return None


# %% [markdown]
# Next: [10](10-freeing.ipynb).
