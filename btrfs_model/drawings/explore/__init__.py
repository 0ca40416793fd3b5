# SPDX-License-Identifier: GPL-2.0-only
"""A filesystem as a page to explore: trees down to the bytes of items, in a browser.

Python packs the tree blocks (:mod:`.pack`) and writes down how items are shown (:mod:`.form`, from
the tables of a dump). The page has both, and JavaScript that follows them. ``blocks.js`` unpacks
blocks as they are asked for, ``states.js`` knows the states of a disk. ``words.js`` and ``form.js``
make fields of items, ``trees.js`` searches, finds who refers, and compares. ``view.js`` shows,
``routes.js`` goes where an address leads, which ``links.js`` reads and makes. ``drop.js`` reads an
image by itself.
"""

from btrfs_model.drawings.explore.page import Page, explore

__all__ = ["Page", "explore"]
