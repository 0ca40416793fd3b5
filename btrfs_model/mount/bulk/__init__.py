# SPDX-License-Identifier: GPL-2.0-only
"""The same call on many files: rows for one call of C.

The trees, inodes and times end up as after one call for each file. The C is in ``native/bulk``.
"""
