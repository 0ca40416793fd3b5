# SPDX-License-Identifier: GPL-2.0-only
"""Send in plain Python: the kernel's ``send.c``, function by function.

``X.py`` stands beside ``native/send/X.c``, and its public functions have the names that they have
there. Those are the kernel's, where ``fs/btrfs/send.c`` has such a function. All take the state of
the send first, ``sctx``. What the ioctl asks for is in
:mod:`btrfs_model.questions.send.request`, the table of reasons in
:mod:`btrfs_model.questions.send.causes`.

Begin with :mod:`~btrfs_model.reference.send.send`, the walk. ``docs/a-send.md`` leads through it.
Each module uses those before it::

    context          the state, and what waits
    names, paths     inodes and names in the trees; paths as the receiver has them
    command          the stream
    data             what a file extent item says; reading data
    created, inode   inodes are created; their times
    record           which names come and go
    moves            directories that have to wait
    refs             names are made and removed
    clone, hole      what need not be sent as data
    extent, xattr    data; extended attributes
    send             the walk
"""
