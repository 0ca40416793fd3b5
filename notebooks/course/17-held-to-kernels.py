# %% [markdown]
# # 17 · How this model is held to kernels
#
# All through this course a program in Python told you what Linux does. Why believe it? And what would
# it take to show that it is wrong?

# %%
import contextlib
import hashlib
import random
import warnings

import btrfs_model as bm

fs = bm.open(bm.sample("kernel/send/send-utimes/n200"))


def stream(fs, behaviour, new="snap2", old="snap1"):
    """The bytes of an incremental send."""
    return bytes(bm.send(fs, new, old, behaviour=behaviour).data)


# %% [markdown]
# ## Is this what a kernel does?
#
# A kernel made this image, and was asked for the difference between its two snapshots. So were three
# other kernels, on the very same image. What they sent is kept by its hash.
#
# **Guess:** four kernels from 2020 to 2025. How many different streams?

# %% tags=["hide-output"]
RECORDED = {
    "v5.10": "f63f7158e604a756093301dd9010ab5e",
    "v6.1": "f63f7158e604a756093301dd9010ab5e",
    "v6.12": "cf3b6213f26eb461b1075d5a4bd10aee",
    "v6.18": "cf3b6213f26eb461b1075d5a4bd10aee",
}
for release, recorded in RECORDED.items():
    data = stream(fs, release)
    same = hashlib.sha256(data).hexdigest().startswith(recorded)
    print(f"{release}: {len(data):,} bytes, the kernel's: {same}")

# %% [markdown]
# Two. Between 6.1 and 6.12 a patch came that sends fewer commands, and the model has it both ways. It is
# asked for one release or the other, and says what that one says, to the byte.

# %% tags=["claims", "hide-input"]
# what the text says
for release, recorded in RECORDED.items():
    data = hashlib.sha256(stream(fs, release)).hexdigest()
    assert data.startswith(recorded)
assert len(RECORDED) == 4 and len(set(RECORDED.values())) == 2
assert len(stream(fs, "v6.12")) < len(stream(fs, "v6.1"))

# %% [markdown]
# ## A test that cannot fail
#
# That is good news, but how good? Suppose that the model had a mistake. Would this image have shown it?
# We can try, for the model has mistakes on demand: each patch of the kernel that it knows can be taken
# away. Such a patch is a *toggle* here. We take away one after the other, and look whether the stream
# changes.

# %%
known = [
    name for name in bm.toggles()["slug"] if name.startswith("send-")
]
warnings.simplefilter("ignore", bm.errors.BehaviourWarning)
NEWEST = "v6.18"


def noticed(fs):
    """The patches of send without which a stream is another."""
    found = set()
    usual = stream(fs, NEWEST)
    for name in known:
        try:
            if stream(fs, f"{NEWEST} - {name}") != usual:
                found.add(name)
        except bm.BtrfsModelError:
            found.add(name)  # the send fails without it
    return found


# %% [markdown]
# **Guess:** how many of the patches does this image notice?

# %% tags=["hide-output"]
here = noticed(fs)
print("known:", len(known), "  noticed:", len(here))
print(*sorted(here), sep="\n")

# %% [markdown]
# Hardly any. (Many only save time, and no stream can show that: for those the calls of functions are
# counted instead.) An image of one kind asks one kind of question. What one needs is many images of all
# kinds, and nobody can think of all kinds. So they are made at random.

# %% tags=["claims", "hide-input"]
# what the text says
assert 0 < len(here) < len(known) / 10


# %%
def steps_of(seed, count=40):
    """Random steps, in two halves: before snap1, and before snap2."""
    choice = random.Random(seed)
    there, steps = ["sub/f0"], []

    def old():
        return choice.choice(there)

    def new():
        there.append(f"sub/f{choice.randrange(99)}")
        return there[-1]

    def size():
        return choice.choice([5, 4096, 5000, 20_000, 30_000])

    kinds = (
        lambda: ("create", new()),
        lambda: ("create", new()),
        lambda: ("write", old(), 4096 * choice.randrange(8), size()),
        lambda: ("write", old(), 0, size()),
        lambda: ("truncate", old(), size()),
        lambda: ("punch_hole", old(), 0, 4096),
        lambda: ("clone_range", old(), old(), 0, 0, 0),
        lambda: ("rename", old(), new()),
        lambda: ("link", old(), new()),
        lambda: ("unlink", old()),
    )
    for half in (1, 2):
        for _ in range(count):
            steps.append((half, *choice.choice(kinds)()))
    return steps


def carry_out(steps):
    """Make the filesystem; what does not go is left out."""
    fs = bm.create("256M", seed=1)
    fs.create_subvolume("sub")
    for half in (1, 2):
        for number, (when, call, *given) in enumerate(steps):
            if when != half:
                continue
            if call == "write":
                given[-1] = bytes([number + 1]) * given[-1]
            with contextlib.suppress(OSError):
                getattr(fs, call)(*given)
        fs.snapshot("sub", f"snap{half}")
    fs.sync()
    return fs


# %% [markdown]
# **Guess:** we make 12 of them. How many patches do they notice together?

# %% tags=["hide-output"]
first, seen = {}, set()
for seed in range(12):
    with carry_out(steps_of(seed)) as one:
        for name in noticed(one) - seen:
            first[name] = seed
            seen.add(name)
    print(f"after {seed + 1:2}: {len(seen)}")

# %% [markdown]
# Half of them come with the first, and then it takes long for each more. That is why the model is
# compared on random filesystems by the thousand, with `btrfs-model verify`. And that is why
# there are also lists that leave nothing out, such as that of all sequences of two operations on a
# small tree, with an fsync and a crash between and after them.

# %% tags=["claims", "hide-input"]
# what the text says
assert len(seen) > len(here)
assert sum(seed == 0 for seed in first.values()) * 2 == len(first)
assert max(first.values()) > 6

# %% [markdown]
# ## What does "no difference" say?
#
# We compare on some number of random cases, and all are equal. Then no mistake is left? That cannot be
# said. But if one case in a hundred differed, how probable would it be to see none of these?

# %%
for cases in (10, 100, 300, 1000):
    unseen = 0.99**cases
    print(f"{cases:5} cases, none differs: {100 * unseen:7.3f} %")

# %% [markdown]
# After 300 cases it is less than 5 in a hundred. So 300 equal cases say: with 95 percent certainty,
# less than one in a hundred differs. It is about three divided by the number of cases, and holds for
# cases of the kind that was drawn, not for others.

# %% tags=["claims", "hide-input"]
# what the text says
assert 0.99**300 < 0.05 < 0.99**290
for cases in (100, 1000, 10_000):
    assert abs(1 - 0.05 ** (1 / cases) - 3 / cases) < 0.1 / cases

# %% [markdown]
# ## A difference is made short
#
# Now a case does differ. It has 80 steps, and one wants to know why. So steps are left out, as long as
# the difference stays. Here the difference is that of a patch that we take away.


# %%
def shorter(steps, differs):
    """Leave out each step without which it differs still."""
    for number in reversed(range(len(steps))):
        rest = steps[:number] + steps[number + 1 :]
        if differs(rest):
            steps = rest
    return steps


GONE = "send-truncate-before-clone"


def differs(steps):
    """Whether the patch makes a difference to the stream."""
    with carry_out(steps) as one:
        return stream(one, NEWEST) != stream(
            one, f"{NEWEST} - {GONE}"
        )


found = next(seed for seed in range(99) if differs(steps_of(seed)))
print(
    "a case that differs:", found, "of", len(steps_of(found)), "steps"
)

# %% [markdown]
# **Guess:** how many of the steps are left?

# %% tags=["hide-output"]
short = shorter(steps_of(found), differs)
for half, *step in short:
    print(f"before snap{half}:", *step)

# %% [markdown]
# A handful, and each of them is needed. That one can read, and carry out by hand in a kernel.

# %% tags=["claims", "hide-input"]
# what the text says
assert len(steps_of(found)) == 80
assert 0 < len(short) < 10 and differs(short)
for number in range(len(short)):
    assert not differs(short[:number] + short[number + 1 :])

# %% [markdown]
# ## Said before
#
# To explain a number that one knows is easy: one can turn screws until it comes out. It is worth more
# to say it first. A prediction is **blind** if it was written down before anybody had measured. In
# notebook 15 the model said that the first block of the old tree is lost by commit number 1,627. Only
# then did we ask a kernel, and sat through 1,627 commits. What the model says of patches before anybody
# looks up their figures is kept, with the day and a hash of the program. Where it was wrong, [the page
# says so](../../docs/atlas.md).
#
# You have done the same, with each guess. And you can ask a kernel, without root, and without a disk. With
# Debian's package `user-mode-linux` a kernel is a program like any other:
#
# ```
# btrfs-model verify --kernel uml --minutes 5
# ```
#
# If it finds a difference, tell us: it is a mistake of ours, or one of Linux. There have been both.

# %% tags=["claims", "hide-input"]
# what the text says of notebook 15
with bm.create("256M", nodesize=4096, seed=1) as one:
    one.create_files(
        "", [f"file{number:03}" for number in range(200)]
    )
    one.create("thesis")
    one.write("thesis", 0, b"chapter " * 17_500)
    one.sync()
    old = {b.logical for t in one.trees.values() for b in t.blocks()}
    one.unlink("thesis")
    one.sync()
    for number in range(1, 1628):
        mode = 0o600 + number // 200 % 2 * 4
        one.chmod(f"file{number % 200:03}", mode)
        one.sync()
        now = {
            block.logical
            for tree in one.trees.values()
            for block in tree.blocks()
            if block.generation == one.image.superblock.generation
        }
        assert bool(now & old) == (number == 1627)

# %% [markdown]
# ## Exercises
#
# **Exercise 1.** Two kernels send other streams. In which release did it change? Let
# `changed_in(releases, send)` return the first release whose stream is another one than that of the
# first. `releases` is a list, the oldest first; `send(release)` returns a stream. It takes a while, so
# halve the list each time: 16 releases may take 5 calls. The stream changes once and stays so, and that
# of the last release is another one than that of the first.
#
# <details><summary>A solution</summary>
#
# ```python
# def changed_in(releases, send):
#     old = send(releases[0])
#     good, bad = 0, len(releases) - 1
#     while bad - good > 1:
#         middle = (good + bad) // 2
#         if send(releases[middle]) == old:
#             good = middle
#         else:
#             bad = middle
#     return releases[bad]
# ```
#
# So `git bisect` finds the patch that broke something, and `btrfs-model kernel bisect` the release.
# </details>


# %% tags=["exercise"]
def changed_in(releases, send): ...  # yours


# %% tags=["check", "hide-input"]
from btrfs_model.base.exercises import judge


@judge
def wrong():
    releases = [f"v6.{number}" for number in range(1, 17)]
    for place in (1, 2, 7, 11, 15):
        calls = []

        def send(release, place=place, calls=calls):
            calls.append(release)
            return releases.index(release) >= place

        said = changed_in(list(releases), send)
        if said != releases[place]:
            return (
                f"it changed in {releases[place]}, and it says {said}"
            )
        if len(calls) > 5:
            return f"for {releases[place]} it took {len(calls)} calls"
    real = ["v5.10", "v6.1", "v6.12", "v6.18"]
    said = changed_in(real, lambda release: stream(fs, release))
    if said != "v6.12":
        return f"of the image above it says {said}"
    return None


# %% [markdown]
# **Exercise 2.** So many random cases were equal. Let `at_most(cases, certainty)` return the share of
# cases that may differ: the largest for which seeing none of them has still the probability
# `1 - certainty`.
#
# <details><summary>A solution</summary>
#
# ```python
# def at_most(cases, certainty):
#     return 1 - (1 - certainty) ** (1 / cases)
# ```
# </details>


# %% tags=["exercise"]
def at_most(cases, certainty): ...  # yours


# %% tags=["check", "hide-input"]
@judge
def wrong():
    for cases, certainty in ((1, 0.5), (300, 0.95), (100_000, 0.99)):
        said = at_most(cases, certainty)
        # what it says must be a share, and give the probability
        is_right = isinstance(said, float) and 0 < said < 1
        unseen = (1 - said) ** cases if is_right else 2
        if abs(unseen - (1 - certainty)) > 1e-6:
            return f"of {cases} cases and {certainty} it says {said}"
    return None


# %% [markdown]
# Next: five patches of the kernel, each a case of its own. The first is [a truncate that nobody
# needed](../send-truncate.ipynb).
