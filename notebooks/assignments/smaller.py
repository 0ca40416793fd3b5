# %% [markdown]
# # Assignment · A send of a tenth
#
# Ten points. It takes what the chapters [on file data](../course/04-file-data.ipynb) and [on
# send](../course/08-send.ipynb) say.
#
# A program saves its database each night, and `btrfs send` carries it to another disk. Hardly
# anything changes in a day. Why is the send as large as the database?

# %%
import btrfs_model as bm
from btrfs_model.teaching.smaller import save_slowly, tonight

fs = bm.create("256M", seed=1)
today = bytes(range(256)) * 4096
fs.create("base.db")
fs.write("base.db", 0, today)
fs.snapshot("", "yesterday")
save_slowly(fs, "base.db", tonight(today))
fs.snapshot("", "today")
sent = bm.send(fs, "today", parent="yesterday")
print(f"{len(today):,} bytes of data, {sent.size:,} bytes of stream")
print(sent.commands)
assert sent.size > len(today)

# %% [markdown]
# Write `save(fs, path, content)`: afterwards the file has this content, and there is no other file
# than before. Two points if it is right, three more for a send of half the size, five more for a
# tenth. The database may become longer or shorter. `fs.read_file("", path)` reads what was committed.


# %% tags=["start"]
def save(fs, path, content): ...  # yours


# %% tags=["grade"]
from btrfs_model.teaching import grade

grade("smaller", globals())
