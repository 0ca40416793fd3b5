# %% [markdown]
# # Assignment · A toggle of your own
#
# Ten points. It takes what the case [of a truncate that nobody needed](../send-truncate.ipynb) says.
#
# The patch "Btrfs: send, do not issue unnecessary truncate operations" made streams shorter. The model
# has it as a toggle, and sends as the kernels before and after it.

# %%
import btrfs_model as bm
from btrfs_model.teaching.toggle import COMMIT, random_disk

fs = random_disk()
before = bm.send(fs, "snap", behaviour=f"{COMMIT}^")
after = bm.send(fs, "snap", behaviour=COMMIT)
for sent in (before, after):
    print(f"{sent.size:,} bytes:", sent.commands)

# %% [markdown]
# Find the rule, and write it as a function from a stream to a stream. `bm.read_stream` reads commands,
# and a writer writes them again:

# %%
writer = bm.StreamWriter()
again = writer.header() + b"".join(
    writer.command(command.name, **command.attributes)
    for command in bm.read_stream(before.data)
)
assert again == before.data

# %% [markdown]
# | function | points | returns |
# |---|---|---|
# | `truncates(stream)` | 2 | how many commands `truncate` a stream has |
# | `patched(stream)` | 3 | of a stream of the older kernel the bytes that the newer one sends, where files have no holes |
# | | 5 | the same where files have holes |
#
# Streams are full sends, as those above.


# %% tags=["start"]
def truncates(stream): ...  # yours


def patched(stream): ...  # yours


# %% tags=["grade"]
from btrfs_model.teaching import grade

grade("toggle", globals())
