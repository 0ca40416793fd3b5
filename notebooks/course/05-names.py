# %% [markdown]
# # 05 · Directories, links, names and their hashes
#
# To open `docs/plan` the kernel must find one name among perhaps a million. To list `docs` it must
# give each name once, even while others make and delete files. The order that is good for the one
# is not the best for the other. So btrfs keeps two.

# %%
import btrfs_model as bm

fs = bm.create("256M", seed=1)
fs.mkdir("docs")
for name in ("plan", "notes", "draft", "zebra", "apple"):
    fs.create(f"docs/{name}")
fs.sync()
docs = fs.subvolume("").resolve("docs")
for item in fs.tree(5).items((docs, 84, 0), (docs, 96, 2**64 - 1)):
    kind = {84: "DIR_ITEM", 96: "DIR_INDEX"}[item.key.type]
    print(
        f"{kind:9} {item.key.offset:>10}",
        bytes(item.data[30:]).decode(),
    )

# %% [markdown]
# ## By hash, and by number
#
# Each name stands twice. In a `DIR_ITEM` the last number of the key is a **hash** of the name: a
# number of 32 bits computed from it, which looks random. To find a name, compute its hash and
# search that key: one search, however large the directory. In a `DIR_INDEX` it is a number that was
# counted up when the name was made. Listing goes by that: new names come at the end, and no name
# moves under a reader.

# %% tags=["claims", "hide-input"]
# what the text says
found = [
    item.key
    for item in fs.tree(5).items((docs, 84, 0), (docs, 96, 2**64 - 1))
]
hashes = [key.offset for key in found if key.type == 84]
counted = [key.offset for key in found if key.type == 96]
assert len(hashes) == len(counted) == 5
assert max(hashes) < 2**32
assert counted == [2, 3, 4, 5, 6]
with bm.counting() as work:
    fs.subvolume("").lookup(docs, b"zebra")
assert work["btrfs_search_slot"] == 1

# %% [markdown]
# **Guess:** in which order does `ls -U` (unsorted) show the five names?

# %% tags=["hide-output"]
print(
    [
        entry.name.decode()
        for entry in fs.subvolume("").readdir("docs")
    ]
)

# %% [markdown]
# ## When two names have the same hash
#
# There are only some four thousand million hashes. Among a hundred thousand names, two are more
# likely than not to have the same one. Then both stand in the same item, one behind the other, and
# the search compares the names.

# %%
names = [
    f"{number * 2654435761 % 2**40:010x}" for number in range(160_000)
]
with bm.create("1G", seed=1) as many:
    many.mkdir("d")
    many.create_files("d", names)
    many.sync()
    items = many.tree(5).scan((257, 84, 0), (257, 84, 2**64 - 1))
print(len(names), "names in", len(items["offset"]), "DIR_ITEMs")
assert len(names) > len(items["offset"])
pairs = 100_000 * 99_999 / 2
assert 1 - (1 - 2**-32) ** pairs > 1 / 2  # that some pair has it

# %% [markdown]
# ## Links
#
# A name is only an entry that leads to an inode. A file may have a second one in the same tree of
# files: a **hard link**. (A directory may not.) The inode counts them, and each name is written down
# with the inode as well, in an `INODE_REF`, so that a name can be found from the inode.

# %%
fs.link("docs/plan", "plan-again")
fs.sync()
top = fs.subvolume("")
ino = top.resolve("docs/plan")
print("names:", [path.decode() for path in top.paths_of(ino)])
print("links:", top.inode(ino).nlink)
for item in fs.tree(5).items((ino, 12, 0), (ino, 12, 2**64 - 1)):
    print(item.key, bytes(item.data[10:]))
assert top.inode(ino).nlink == 2

# %% [markdown]
# A file is gone when its last name is gone and no program has it open. A **symbolic link** is
# something else: a small file whose bytes are a path.

# %%
fs.unlink("docs/plan")
fs.symlink("plan-again", "points")
fs.sync()
top = fs.subvolume("")
print("links left:", top.inode("plan-again").nlink)
print("the link says:", top.read_link("points"))

# %% [markdown]
# ## What a rename is
#
# To rename a file moves no data, whatever its size. (From one subvolume to another nothing can be
# renamed: `mv` copies the file then.) How many items change?


# %%
def items():
    """All items of the files, as key and bytes."""
    return {item.key: bytes(item.data) for item in fs.tree(5).items()}


before = items()
fs.rename("docs/zebra", "docs/aardvark")
fs.sync()
after = items()
print("gone:", [str(key) for key in before.keys() - after.keys()])
print("new:", [str(key) for key in after.keys() - before.keys()])
both = before.keys() & after.keys()
changed = sorted(key for key in both if before[key] != after[key])
print("changed:", [str(key) for key in changed])

# %% [markdown]
# Two items are gone and two are new: the entry, in both orders. Three have changed: the inode of the
# directory, that of the file, and the name in its `INODE_REF`. No item with data is among them.

# %% tags=["claims", "hide-input"]
# what the text says; 1: INODE_ITEM, 12: INODE_REF
assert len(before.keys() - after.keys()) == 2
assert len(after.keys() - before.keys()) == 2
assert [key.type for key in changed] == [1, 1, 12]

# %% [markdown]
# ## Is this what a kernel does?
#
# For an image that a kernel made we compare the two orders of each directory: they must hold the
# same names, and the inode behind each name must know it.

# %%
kernel = bm.open(bm.sample("kernel/features/zstd"))
tree = kernel.subvolume("volume").tree
found = {84: {}, 96: {}}
for item in tree.items():
    if item.key.type in found:
        at = 0
        data = bytes(item.data)
        while at < len(data):
            length = int.from_bytes(data[at + 27 : at + 29], "little")
            name = data[at + 30 : at + 30 + length]
            child = int.from_bytes(data[at : at + 8], "little")
            found[item.key.type][item.key.objectid, name] = child
            at += 30 + length
assert found[84] == found[96]
for (directory, name), child in found[84].items():
    assert name in bytes(tree.get((child, 12, directory)).data)
print(len(found[84]), "names, each in both orders and with its inode")

# %% [markdown]
# ## Exercises
#
# **Exercise 1.** Let `in_order_of_creation(fs, path)` return the names of a directory, oldest
# first, without `readdir`: from the `DIR_INDEX` items (type 96) of its inode in `fs.tree(5)`. The
# name begins at byte 30 of the item.
#
# <details><summary>A solution</summary>
#
# ```python
# def in_order_of_creation(fs, path):
#     ino = fs.subvolume("").resolve(path)
#     found = fs.tree(5).items((ino, 96, 0), (ino, 96, 2**64 - 1))
#     return [bytes(item.data[30:]).decode() for item in found]
# ```
# </details>


# %% tags=["exercise"]
def in_order_of_creation(fs, path): ...  # yours


# %% tags=["check", "hide-input"]
from btrfs_model.base.exercises import judge


@judge
def wrong():
    with bm.create("256M", seed=2) as one:
        one.mkdir("new")
        for name in ("m", "z", "a", "k"):
            one.create(f"new/{name}")
        one.rename("new/z", "new/b")
        one.sync()
        for path, right in (
            ("new", ["m", "a", "k", "b"]),
            ("", ["new"]),
        ):
            if (said := in_order_of_creation(one, path)) != right:
                return f"for another directory {path!r}: {said}"
    return None


# %% [markdown]
# **Exercise 2.** Let `same_hash(names)` return two of many names that share a `DIR_ITEM`: make a
# filesystem with files of these names, as above. The item of two names is longer than the others;
# entries follow each other, and bytes 27 and 28 of an entry are the length of its name.
#
# <details><summary>A solution</summary>
#
# ```python
# def same_hash(names):
#     with bm.create("1G", seed=1) as many:
#         many.mkdir("d")
#         many.create_files("d", names)
#         many.sync()
#         for item in many.tree(5).items((257, 84, 0), (257, 84, 2**64 - 1)):
#             length = int.from_bytes(item.data[27:29], "little")
#             if len(item.data) > 30 + length:
#                 first = bytes(item.data[30 : 30 + length])
#                 second = bytes(item.data[30 + length + 30 :])
#                 return [first.decode(), second.decode()]
# ```
# </details>


# %% tags=["exercise"]
def same_hash(names): ...  # yours


# %% tags=["check", "hide-input"]
@judge
def wrong():
    pairs = (
        ("b57321f35f", "afa348c535"),
        ("4e845ca5ee", "8971a0c612"),
        ("a60ac2d3a3", "259214b786"),
    )
    for pair in pairs:
        some = sorted([*names[:500], *pair])
        said = same_hash(some)
        if not isinstance(said, list | tuple) or len(said) != 2:
            return f"it returns {said}, not two names"
        if not set(said) <= set(some):
            return f"not both of {said} are names that it was given"
        if len(set(said)) != 2:
            return f"{said} is one name twice"
        with bm.create("256M", seed=1) as small:
            small.create_files("", list(said))
            small.sync()
            items = small.tree(5).items(
                (256, 84, 0), (256, 84, 2**64 - 1)
            )
            if len(list(items)) != 1:
                return f"{said} do not share a DIR_ITEM"
    return None


# %% [markdown]
# Next: [06](06-who-refers.ipynb).
