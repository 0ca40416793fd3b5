# %% [markdown]
# # Assignment · What the log will lose
#
# Ten points. It takes what the chapter [on fsync](../course/07-fsync.ipynb) says.
#
# The power goes off. What is on the device then is an image like any other, with a log.

# %%
import pathlib
import tempfile

import btrfs_model as bm
from btrfs_model.teaching.log import carry_out, crash

folder = tempfile.TemporaryDirectory()
path = pathlib.Path(folder.name, "crashed.img")
fs = bm.create("256M", nodesize=4096, seed=1)
carry_out(
    fs,
    [
        ["create", "letter"],
        ["sync"],
        ["write", "letter", 0, b"Dear Ada"],
        ["fsync", "letter"],
    ],
)
crashed = crash(fs, path)
print("before a mount:", crashed.read_file("", "letter"))
recovered = bm.replay_log(crashed)
print("after it:      ", recovered.read_file("", "letter"))

# %% [markdown]
# Operations are lists: a call and its arguments. There are `create`, `mkdir`, `write` (path, offset,
# bytes), `truncate` (path, size), `link`, `rename`, `unlink`, `fsync` and `sync`.
#
# | function | points | returns |
# |---|---|---|
# | `zeroed(crashed)` | 3 | a set of the paths that are lost, or older, when somebody zeroes the log before the mount |
# | `comes_along()` | 3 | at most six operations, one `fsync` among them and no `sync`: after a crash a file is there that was not synced itself |
# | `save(name, content)` | 4 | operations that replace the content of a file. Whenever the machine crashes, the file is whole, old or new; at the end it is new. The kernel may commit between any two operations |


# %% tags=["start"]
def zeroed(crashed): ...  # yours


def comes_along(): ...  # yours


def save(name, content): ...  # yours


# %% tags=["grade"]
from btrfs_model.teaching import grade

grade("log", globals())
