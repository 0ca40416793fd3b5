# SPDX-License-Identifier: GPL-2.0-only

# An empty filesystem: mkfs writes each tree as one leaf, and the superblock last.
mkfs.btrfs -q -n $NODESIZE /dev/sdx
mount /dev/sdx /mnt

# A small file. It is in memory alone: nothing goes to the disk.
echo "hello" >/mnt/small

# A larger one. Its pages wait in memory as well.
xfs_io -f -c "pwrite -q 0 64K" /mnt/large

# The commit: data first, then new tree blocks, at last the superblock that leads to them.
sync

# The end. All is there already, and another commit changes little.
umount /mnt
