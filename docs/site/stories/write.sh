# SPDX-License-Identifier: GPL-2.0-only

# An empty filesystem: each tree is one leaf, and the superblock leads to them.
mkfs.btrfs -q -n $NODESIZE /dev/sdx
mount /dev/sdx /mnt

# A small file. It is in memory alone: nothing goes to the disk.
echo "hello" >/mnt/small

# A larger one. Its pages wait in memory as well.
xfs_io -f -c "pwrite -q 0 64K" /mnt/large

# The commit: data first, then new tree blocks, at last the superblock that leads to them.
sync

# The end. All is there already: a commit changes little, and Linux 7.2 makes none.
umount /mnt
