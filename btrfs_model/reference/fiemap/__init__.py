# SPDX-License-Identifier: GPL-2.0-only
"""FIEMAP in plain Python: the twin of ``native/fiemap``.

Follows ``fiemap.c`` (Linux 6.1 to 6.18) and, for older kernels, ``extent_io.c`` of 5.10.
"""
