# %% [markdown]
# # 14 · Quotas, and what is mine
#
# Several people share a disk, each with a subvolume. Who takes how much of it, and can one of them be
# stopped? On other filesystems a byte has one owner. Here it may be in many subvolumes. Whose is it?

# %%
import random

import btrfs_model as bm


def home():
    """A subvolume with a film and a hundred small files."""
    fs = bm.create("1G", nodesize=4096, seed=1)
    fs.create_subvolume("home")
    fs.create("home/film")
    fs.write("home/film", 0, b"f" * (8 << 20))
    fs.sync()
    for number in range(100):
        name = f"home/f{number:03}"
        fs.create(name)
        fs.write(name, 0, b"x" * 8192)
    fs.sync()
    return fs


def show(fs):
    """Print what a kernel would have counted."""
    for one in fs.qgroups().itertuples():
        name = one.path or "-"
        print(f"{one.qgroup:6} {name:6}", end="")
        print(f"{one.rfer:>11,} {one.excl:>11,}")


# %% [markdown]
# ## Two numbers
#
# With quotas on, a subvolume has a **quota group**, which `btrfs qgroup show` lists by the subvolume's
# number: `0/256`. It has two numbers, both in bytes of the disk. **Referenced** is what the subvolume
# reaches, shared or not; **exclusive** is what nobody else reaches. Tree blocks count as data do.

# %%
fs = home()
fs.quota_enable()
print("group  path    referenced   exclusive")
show(fs)

# %% [markdown]
# Let us count that ourselves. We go through all subvolumes, and note for each extent and each tree
# block who comes by.


# %%
def reached(fs):
    """Of each address: its bytes, and who reaches it."""
    found = {}
    for number in fs.subvolume_ids:
        tree = fs.subvolume(number).tree
        places = [
            (block.logical, fs.image.nodesize)
            for block in tree.blocks()
        ]
        for item in tree.items():
            # EXTENT_DATA, not inline, and no hole
            if item.key.type == 108 and item.data[20]:
                at, size = (
                    int.from_bytes(
                        item.data[start : start + 8], "little"
                    )
                    for start in (21, 29)
                )
                if at:
                    places.append((at, size))
        for at, size in places:
            found.setdefault(at, (size, set()))[1].add(number)
    return found


def count(fs, number):
    """Bytes referenced and exclusive of a subvolume."""
    everything = reached(fs).values()
    return (
        sum(size for size, who in everything if number in who),
        sum(size for size, who in everything if who == {number}),
    )


print(count(fs, fs.subvolume("home").id))

# %% tags=["claims", "hide-input"]
# what the text says: the numbers are those of the groups


def is_counted(fs):
    """Whether all groups of subvolumes say what we count."""
    groups = fs.qgroups().itertuples()
    return all(
        count(fs, int(one.qgroup[2:])) == (one.rfer, one.excl)
        for one in groups
        if one.qgroup.startswith("0/")
    )


assert is_counted(fs)

# %% [markdown]
# **Guess:** we take a snapshot. What are the numbers of `home` and of the snapshot then?

# %% tags=["hide-output"]
fs.snapshot("home", "snap1")
show(fs)

# %% [markdown]
# Nobody has anything alone except its root. `home` has lost what it had exclusive, though no one has
# touched it. So *exclusive* is not "what I have written". It is "what is free when I am deleted and the
# others stay".

# %% tags=["claims", "hide-input"]
# what the text says
assert is_counted(fs)
rows = fs.qgroups().set_index("qgroup").loc[["0/256", "0/257"]]
assert set(rows["excl"]) == {fs.image.nodesize}

# %% [markdown]
# **Guess:** the film is deleted in `home`. Whose number grows?

# %% tags=["hide-output"]
fs.unlink("home/film")
fs.sync()
show(fs)

# %% [markdown]
# That of the snapshot: it alone has the film now. The bytes did not move, and none became free.

# %% tags=["claims", "hide-input"]
# what the text says
row = fs.qgroups().set_index("qgroup").loc["0/257"]
film = sum(
    one.disk_num_bytes
    for one in fs.subvolume("snap1").extents("film")
)
assert film == 8 << 20 < row["excl"] < fs.raw_super.bytes_used

# %% [markdown]
# **Guess:** somebody takes a snapshot of the snapshot. How many bytes does each have alone? And how
# many are free when both are deleted?

# %% tags=["hide-output"]
fs.snapshot("snap1", "snap2")
show(fs)
fs.qgroup_create("1/0")
fs.qgroup_assign("0/257", "1/0")
fs.qgroup_assign("0/258", "1/0")
fs.quota_rescan()
print("together:")
show(fs)

# %% [markdown]
# A block each, and yet 8 MiB together. Numbers of exclusive bytes cannot be added. To ask about several
# subvolumes one puts their groups into a group of a higher level, such as `1/0`: its exclusive bytes
# are those that only its members reach. (It could not tell at once, and wanted a rescan: a member that
# shares anything cannot just be added.)

# %% tags=["claims", "hide-input"]
# what the text says
assert is_counted(fs)
groups = fs.qgroups().set_index("qgroup")
assert list(groups.loc[["0/257", "0/258"], "excl"]) == [4096, 4096]
both = int(groups.loc["1/0", "excl"])
assert both > 8 << 20
pair = {257, 258}
everything = reached(fs).values()
assert both == sum(size for size, who in everything if who <= pair)
before = fs.raw_super.bytes_used
for name in ("snap2", "snap1"):
    fs.delete_subvolume(name)
    fs.sync()
    fs.clean_subvolumes()
    fs.sync()
    assert is_counted(fs)
assert before - fs.raw_super.bytes_used >= both

# %% [markdown]
# ## What counting costs
#
# How does a kernel know? At each commit it takes all extents to which a subvolume got or gave up a
# reference, and walks back from each, as in notebook 06: who reached it before the commit, and who does
# now? We make one file private, which changes no byte of data, and commit. How many extents are that,
# and how many subvolumes do the walks find, before and after together?


# %%
def looked_up(fs):
    """Extents that a commit has to ask about, and the answers."""

    def references():
        return {
            item.key.objectid: bytes(item.data)
            for item in fs.tree(2).items()
            if item.key.type in (168, 169)  # of data, of tree blocks
        }

    was, who_was = references(), reached(fs)
    fs.chmod("home/f050", 0o600)
    fs.sync()
    now, who_is = references(), reached(fs)
    asked = [
        at
        for at in who_was.keys() | who_is.keys()
        if was.get(at) != now.get(at)
    ]
    answers = sum(
        len(who[at][1])
        for who in (who_was, who_is)
        for at in asked
        if at in who
    )
    return len(asked), answers


# %% [markdown]
# **Guess:** how many, without a snapshot, and with 1, 5 and 20 of them?

# %% tags=["hide-output"]
costs = {}
for snapshots in (0, 1, 5, 20):
    fs = home()
    for number in range(snapshots):
        fs.snapshot("home", f"snap{number}")
    costs[snapshots] = looked_up(fs)
    asked, answers = costs[snapshots]
    print(f"{snapshots:2} snapshots: {asked:2} extents,", end=" ")
    print(f"{answers:3} subvolumes found")

# %% [markdown]
# Without snapshots it is the old and the new blocks, and that is all. With one the leaf is copied that
# both share, so each extent that it shows has one reference more, and is asked about: before the commit
# it was reached by all, and so it is now. That was for nothing. And each more snapshot is one more that
# each walk has to find, twice. Now you know why an hourly snapshot and quotas make a slow disk.

# %% tags=["claims", "hide-input"]
# what the text says
assert costs[0] == (4, 4)
assert costs[1][0] == costs[5][0] == costs[20][0] > 4 * costs[0][0]
assert costs[20][1] > 10 * costs[1][1]

# %% [markdown]
# We listened to the kernel while it did this: Linux 6.18.44 says at the tracepoint
# `btrfs_qgroup_account_extent` each extent, and how many subvolumes it found before and after. It had
# as many of both.

# %%
ON_A_KERNEL = {0: (4, 4), 1: (17, 58), 5: (17, 170), 20: (17, 590)}
assert costs == ON_A_KERNEL

# %% [markdown]
# ## Limits
#
# A group can have a limit. Whoever would exceed it gets the error EDQUOT, "Disk quota exceeded". Our
# `home` may refer to 4 MiB now, and has a file of 3.
#
# **Guess:** we write over 2 MiB of that file. It does not grow by that. Is it allowed?

# %% tags=["hide-output"]
fs = bm.create("1G", nodesize=4096, seed=1)
fs.create_subvolume("home")
fs.quota_enable()
fs.qgroup_limit("0/256", max_rfer=4 << 20)
said = {}


def attempt(what, call):
    """Say how a call ends, and commit."""
    try:
        done = call()
        said[what] = "done" if done is None else f"{done:,} bytes"
    except OSError as error:
        said[what] = error.strerror
    fs.sync()
    print(f"{what}: {said[what]}")


fs.create("home/a")
attempt("3 MiB", lambda: fs.write("home/a", 0, b"a" * (3 << 20)))
attempt("over 2", lambda: fs.write("home/a", 0, b"b" * (2 << 20)))
attempt("over 1", lambda: fs.write("home/a", 0, b"b" * (1 << 20)))
attempt("a new file", lambda: fs.create("home/b"))
attempt("delete", lambda: fs.unlink("home/a"))
fs.create("home/b")
attempt(
    "3 MiB again", lambda: fs.write("home/b", 0, b"b" * (3 << 20))
)

# %% [markdown]
# Nearly half of it is written, then the group is full: copy on write needs the new bytes before it gives up
# the old ones, and here the old extent stays as a whole. After that not even an empty file can be made.
# What always works is to delete.

# %% tags=["claims", "hide-input"]
# what the text says
exceeded = "Disk quota exceeded"
done = int(said["over 2"].split()[0].replace(",", ""))
assert 0.45 < done / (2 << 20) < 0.5
assert said["over 1"] == said["a new file"] == exceeded
assert said["delete"] == "done"
assert said["3 MiB again"] == f"{3 << 20:,} bytes"

# %% [markdown]
# **Guess:** can one get around the limit, if one may take snapshots?

# %% tags=["hide-output"]
for number in range(5):
    fs.snapshot("home", f"snap{number}")
    fs.unlink("home/b")
    fs.create("home/b")
    fs.write("home/b", 0, bytes([number]) * (3 << 20))
    fs.sync()
show(fs)

# %% [markdown]
# One can. A snapshot has a group of its own, with the same limit, and a limit of its own is no limit.
# `home` never has more than 4 MiB; what its owner has by now on the disk is several times as much. So one lets snapshots be put into a group of a
# higher level as they are made (`btrfs subvolume snapshot -i`), and limits that.

# %% tags=["claims", "hide-input"]
# what the text says
groups = fs.qgroups().set_index("qgroup")
assert groups["rfer"]["0/256"] < 4 << 20
assert groups["excl"].sum() > 4 * (4 << 20)
limits = groups["max_rfer"].dropna()
assert set(limits) == {4 << 20} and "0/261" in limits.index

# %% [markdown]
# ## Simple quotas
#
# Since Linux 6.7 there is another answer to "whose is it?": his who wrote it, until it is free. These
# are **simple quotas**. With each extent of data its first owner is noted, and a commit only adds up
# what was allocated and freed. No walk is needed.
#
# **Guess:** the same story again: a snapshot, then the film is deleted in `home`. What do the groups
# say?

# %% tags=["hide-output"]
with bm.create("1G", nodesize=4096, seed=1) as fs:
    fs.quota_enable(simple=True)
    fs.create_subvolume("home")
    fs.create("home/film")
    fs.write("home/film", 0, b"f" * (8 << 20))
    fs.sync()
    fs.snapshot("home", "snap1")
    fs.unlink("home/film")
    fs.sync()
    billed = fs.qgroups().set_index("qgroup")["rfer"].to_dict()
    show(fs)
    owners = [
        int.from_bytes(item.data[25:33], "little")
        for item in fs.tree(2).items()
        if item.key.type == 168  # EXTENT_ITEM
    ]
    print("owner of the film's extents:", *set(owners))

# %% [markdown]
# `home` still pays for the film, which it does not have any more: it wrote it. The snapshot pays for
# its root. When the snapshot goes, so does the bill. That is cheap, and each byte has one who pays;
# but he may not be able to do anything about it.

# %% tags=["claims", "hide-input"]
# what the text says
assert billed["0/256"] > 8 << 20 and billed["0/257"] == 4096
assert set(owners) == {256}

# %% [markdown]
# ## Is this what a kernel does?
#
# In this image a kernel counted. We count by `reached`, and compare. (We also had Linux 6.18.44 go
# through all of the stories above. Its groups had our numbers, to the byte.)

# %%
kernel = bm.open(bm.sample("kernel/features/quota"))
show(kernel)
assert is_counted(kernel)

# %% tags=["claims", "hide-input"]
# what the kernel said: begin, snapshot, film deleted, again
stories = {
    "begin": [(9269248, 9269248)],
    "snap1": [(9269248, 4096), (9269248, 4096)],
    "film": [(880640, 20480), (9269248, 8409088)],
    "snap2": [(880640, 20480), (9269248, 4096), (9269248, 4096)],
}
with home() as fs:
    fs.quota_enable()
    steps = (
        lambda: None,
        lambda: fs.snapshot("home", "snap1"),
        lambda: fs.unlink("home/film"),
        lambda: fs.snapshot("snap1", "snap2"),
    )
    for step, numbers in zip(steps, stories.values(), strict=True):
        step()
        fs.sync()
        rows = fs.qgroups()[["rfer", "excl"]].itertuples(index=False)
        assert [tuple(map(int, row)) for row in rows][1:] == numbers

# %% [markdown]
# ## Exercises
#
# **Exercise 1.** What would a group of a higher level say? Let `together(fs, numbers)` return the bytes
# referenced and exclusive, as a pair, of the subvolumes `numbers`, a set. Use `reached`.
#
# <details><summary>A solution</summary>
#
# ```python
# def together(fs, numbers):
#     everything = reached(fs).values()
#     return (
#         sum(size for size, who in everything if who & numbers),
#         sum(size for size, who in everything if who <= numbers),
#     )
# ```
# </details>


# %% tags=["exercise"]
def together(fs, numbers): ...  # yours


# %% tags=["check", "hide-input"]
from btrfs_model.base.exercises import judge


def grown(seed):
    """A subvolume that changes, and four snapshots of it."""
    choice = random.Random(seed)
    fs = bm.create("512M", nodesize=4096, seed=seed)
    fs.create_subvolume("home")
    for number in range(20):
        fs.create(f"home/f{number}")
    for step in range(4):
        for _ in range(6):
            name = f"home/f{choice.randrange(20)}"
            length = 4096 * choice.randrange(1, 30)
            fs.write(name, 0, bytes([step + 1]) * length)
        fs.sync()
        fs.snapshot("home", f"snap{step}")
    return fs


@judge
def wrong():
    for seed, numbers in (
        (1, {257}),
        (1, {257, 258}),
        (2, {258, 259, 260}),
        (3, {256, 260}),
    ):
        with grown(seed) as fs:
            said = together(fs, set(numbers))
            fs.quota_enable()
            fs.qgroup_create("1/7")
            for number in numbers:
                fs.qgroup_assign(f"0/{number}", "1/7")
            fs.quota_rescan()
            row = fs.qgroups().set_index("qgroup").loc["1/7"]
            right = (int(row["rfer"]), int(row["excl"]))
            if said != right:
                return f"of {numbers} it returns {said}"
    return None


# %% [markdown]
# **Exercise 2.** You need `wanted` bytes. How many of the snapshots have to go, the oldest first? Let
# `oldest(fs, numbers, wanted)` return the smallest number of them that is enough; `numbers` is a list
# of subvolumes, the oldest first. All of them together are always enough.
#
# <details><summary>A solution</summary>
#
# ```python
# def oldest(fs, numbers, wanted):
#     for count in range(len(numbers) + 1):
#         _, free = together(fs, set(numbers[:count]))
#         if free >= wanted:
#             return count
# ```
#
# To add up what each has alone is not enough: what the first two share becomes free with the second.
# </details>


# %% tags=["exercise"]
def oldest(fs, numbers, wanted): ...  # yours


# %% tags=["check", "hide-input"]
@judge
def wrong():
    for seed in (4, 5, 6):
        with grown(seed) as fs:
            numbers = [257, 258, 259, 260]
            steps = [0]
            for count in range(1, 5):
                gone = set(numbers[:count])
                steps.append(
                    sum(
                        size
                        for size, who in reached(fs).values()
                        if not who - gone
                    )
                )
            for count in range(1, 5):
                if steps[count] == steps[count - 1]:
                    continue
                for wanted in (steps[count - 1] + 1, steps[count]):
                    said = oldest(fs, list(numbers), wanted)
                    if said != count or said is True:
                        return f"for {wanted} bytes it returns {said}"
            if (said := oldest(fs, list(numbers), 0)) != 0:
                return f"for nothing it returns {said}"
    return None


# %% [markdown]
# Next: [15](15-older-trees.ipynb).
