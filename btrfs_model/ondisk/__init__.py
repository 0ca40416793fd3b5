# SPDX-License-Identifier: GPL-2.0-only
"""The on-disk formats: keys, structures, items, superblock, chunks, hashes, send streams.

How a tree block lies on disk
-----------------------------

A tree of btrfs is a b+ tree of blocks of one size, the *nodesize* (4 to 64 KiB, by default 16). All
items are in the *leaves* (level 0); a *node* (level 1 to 7) points at blocks one level below it.
Every block begins with a header of 101 bytes:

    offset  size  field
    0         32  checksum of the bytes 32 to the end (crc32c uses the first 4)
    32        16  fsid of the filesystem
    48         8  logical address of this very block
    56         8  flags: WRITTEN 1, RELOC 2; revision of backreferences in the top byte
    64        16  uuid of the chunk tree
    80         8  generation: the transaction that wrote the block
    88         8  owner: the tree that the block was made for
    96         4  number of items (leaf) or pointers (node)
    100        1  level

In a node follow pointers of 33 bytes, ascending by key: the first key of the child (17 bytes), its
logical address and the generation it must have. A child that was written again without the pointer
is found out by that generation.

    node   | header | ptr 0 | ptr 1 | ptr 2 | ...                                 unused |
           0       101     134     167

In a leaf follow item headers of 25 bytes (key 17, offset 4, size 4) from the front, and the items'
data from the back, so that both grow into the free space between them:

    leaf   | header | item 0 | item 1 | item 2 |   free   | data 2 |  data 1  | data 0 |
           0       101      126      151      176                                     nodesize

The `offset` of an item counts from byte 101, not from the start of the block. Data are packed: item
0 ends at the end of the block, and each further item ends where the one before it begins.

An example
----------

The only leaf of the subvolume of a fresh filesystem, nodesize 16384, holds the root directory:

    item 0 key (256 INODE_ITEM 0) offset 16123 size 160
    item 1 key (256 INODE_REF 256) offset 16111 size 12

Item 0 starts at byte 101 + 16123 = 16224 and ends at 16224 + 160 = 16384, the end of the block.
Item 1 starts at 101 + 16111 = 16212; its 12 bytes end at 16224, where item 0 begins, and read

    00 00 00 00 00 00 00 00   02 00      2e 2e
    index 0                   length 2   ".."

an inode_ref of 10 bytes (index, length of the name) and the name itself. The headers take 2 * 25
bytes, the data 172, so 16384 - 101 - 50 - 172 = 16061 bytes are free.

Where things are
----------------

- :mod:`.keys`: keys, the names of types and objects
- :mod:`.structs`: every fixed structure, declared once; :mod:`.layout`: what makes use of that
- :mod:`.items`: payloads of items of every type
- :mod:`.superblock`, :mod:`.chunks`: where everything starts
- :mod:`.hashes`: checksums, hashes of names
- :mod:`.stream`: commands and attributes of send streams
"""
