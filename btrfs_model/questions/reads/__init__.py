# SPDX-License-Identifier: GPL-2.0-only
"""Which tree blocks a cold kernel reads for a send or a listing, and which are in memory before.

The order follows ``read_block_for_search()`` and ``reada_for_search()`` of ``ctree.c``; what a
mount has read follows ``disk-io.c`` (``open_ctree()``) and ``block-group.c``.
"""
