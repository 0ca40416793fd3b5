# SPDX-License-Identifier: GPL-2.0-only
"""The algorithms of the kernel in plain Python, to be read beside the kernel and the C.

``ctree*`` follow ``ctree.c``, ``backref*`` and ``share`` follow ``backref.c``; ``fiemap`` and
``send`` are folders. Each has a twin in ``native/``; tests hold the two to the same bytes and
counts.
"""
