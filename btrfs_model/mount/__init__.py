# SPDX-License-Identifier: GPL-2.0-only
"""A mounted filesystem: everything that changes it.

:mod:`~btrfs_model.mount.mount` is its state (``struct btrfs_fs_info``), which most functions here
take first. :mod:`~btrfs_model.mount.writable` is the filesystem that users see. A system call
starts in :mod:`~btrfs_model.mount.calls`, which checks what the VFS checks, and goes on in
``names``, ``files`` or ``log``. :mod:`~btrfs_model.mount.transaction` commits (``transaction.c``),
:mod:`~btrfs_model.mount.delayed_inode` runs what reaches the trees later (``delayed-inode.c``).
"""
