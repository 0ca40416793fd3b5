# SPDX-License-Identifier: GPL-2.0-only
"""What a receiver can make of a subvolume."""

import pandas as pd

from btrfs_model.volume.listing import listing
from btrfs_model.volume.subvolume import Subvolume

COLUMNS = ["mode", "nlink", "uid", "gid", "rdev", "size", "atime", "mtime", "xattrs", "target",
           "sha256"]  # fmt: skip


def table(subvolume: Subvolume) -> pd.DataFrame:
    """Files of a subvolume: no entries of other subvolumes, no numbers."""
    rows = listing(subvolume)
    files = rows[rows["subvolume"] == 0].set_index("path").sort_index()
    for path in rows["path"][rows["subvolume"] != 0]:
        parent, _, name = path.rpartition("/")
        files.loc[parent, "size"] -= 2 * len(name.encode("utf-8", "surrogateescape"))
    return files[COLUMNS]
