# SPDX-License-Identifier: GPL-2.0-only
"""Every image of the corpus: C and Python read the same trees, dumps are those of btrfs-progs."""

import corpus
import numpy as np
import pytest
from progs import dumped, without_senseless_times
from test_dump_tree import NEWER_THAN_PROGS, needs_progs, text_of

import btrfs_model as bm
from btrfs_model.base.counters import counting
from btrfs_model.volume.image import Image

IMAGES = [name for name in corpus.images() if name not in corpus.SEVERAL_DEVICES]
# Tests of many images each: with the larger corpus there are thousands.
GROUPS = 32 if corpus.LONG else 1
# The twins read some 100,000 items a second; this keeps the run short.
TWIN_ITEMS = 1_000_000 if corpus.LONG else 30_000
TWINS = [
    name
    for name in IMAGES
    if corpus.LONG
    or name.startswith(("features/", "fiemap-random/", "balance/"))
    or name in {"send/random/seed-000", "send/random/seed-003", "counts/W2/N500"}
]


@pytest.mark.parametrize("name", TWINS)
def test_python_reads_the_same_trees(name: str) -> None:
    with bm.open(corpus.image(name)) as fs:
        for objectid, tree in fs.trees.items():
            with counting() as counted:
                columns, blocks = tree.scan(), tree.blocks()
            assert sum(block.nritems for block in blocks if not block.level) == len(columns["size"])
            if len(columns["size"]) > TWIN_ITEMS:
                continue
            with bm.use_code("python"), counting() as counted_by_twin:
                twin_columns, twin_blocks = tree.scan(), tree.blocks()
            assert blocks == twin_blocks, objectid
            for column, values in columns.items():
                assert np.array_equal(values, twin_columns[column]), (objectid, column)
            assert dict(counted) == dict(counted_by_twin), objectid


@pytest.mark.claim(
    "In long runs every image of the corpus has the dump of btrfs-progs.",
    judge="progs",
)
@needs_progs
@pytest.mark.skipif(not corpus.LONG, reason="takes minutes: make test-long")
@pytest.mark.parametrize("group", range(GROUPS))
def test_every_dump_is_that_of_progs(group: int) -> None:
    for name in IMAGES[group::GROUPS]:
        if name in NEWER_THAN_PROGS:
            continue
        path = corpus.image(name)
        with Image.open(path) as image:
            shown = text_of(image)
        assert without_senseless_times(shown) == without_senseless_times(dumped(path)), name
