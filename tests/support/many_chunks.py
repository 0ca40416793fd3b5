# SPDX-License-Identifier: GPL-2.0-only
"""A filesystem of more chunks than a leaf has block groups, and an extent tree of many leaves."""

import btrfs_model as bm


def many_chunks(progs: str) -> bm.WritableFilesystem:
    """Make one as a release of mkfs.btrfs does, with or without a block group tree."""
    fs = bm.create("200G", nodesize=4096, progs=progs)
    for number in range(90):
        fs.create(f"f{number}")
        fs.fallocate(f"f{number}", 0, 1 << 30)
        fs.create_files("", [f"g{number}-{other}" for other in range(40)])
        if number % 10 == 0:
            fs.sync()
    fs.sync()
    return fs
