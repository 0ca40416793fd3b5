# SPDX-License-Identifier: GPL-2.0-only
"""Send in plain Python: the kernel's ``send.c``, function by function; the twin of ``native/send``.

Begin with :mod:`~btrfs_model.reference.send.sender`, the walk. ``docs/a-send.md`` leads through it.
"""
