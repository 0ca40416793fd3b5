# SPDX-License-Identifier: GPL-2.0-only
"""Names, inodes, attributes and subvolumes.

Follows the part of ``inode.c`` that makes and removes names, ``dir-item.c``, ``inode-item.c``,
``xattr.c``, ``acl.c``, ``props.c`` and, of ``ioctl.c``, subvolumes and inode flags.
"""
