# SPDX-License-Identifier: GPL-2.0-only
"""Relocation: all that is in a block group moves elsewhere (``fs/btrfs/relocation.c``).

`control.py` has the state of one, `backrefs.py` finds who refers to a block, `blocks.py` moves tree
blocks in trees of relocation, `merge.py` gives them to the subvolumes, `extents.py` moves data, and
`group.py` does all this with a block group and takes its chunk away. `balance.py` chooses chunks.
"""
