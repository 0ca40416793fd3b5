# SPDX-License-Identifier: GPL-2.0-only
"""Send: the stream of commands that makes a copy of a subvolume elsewhere.

:func:`send` is ``BTRFS_IOC_SEND``. Without a parent it walks the whole tree of the snapshot, with
one it compares both trees. The rules are in :mod:`btrfs_model.reference.send.send` and the
modules beside it: plain Python, to be read beside the kernel's ``fs/btrfs/send.c`` function by
function. ``native/send/`` does the same at the speed of the kernel.
"""
