# SPDX-License-Identifier: GPL-2.0-only

# A filesystem with one file of 128 KiB.
mkfs.btrfs -q -n $NODESIZE /dev/sdx
mount /dev/sdx /mnt
xfs_io -f -c "pwrite -q -S 1 0 128K" /mnt/file
sync

# 4 KiB in the middle are written again, in memory.
xfs_io -c "pwrite -q -S 2 64K 4K" /mnt/file

# The new 4 KiB go to another place. The old extent stays, and two items refer to its ends.
sync

# All of the file is written again.
xfs_io -c "pwrite -q -S 3 0 128K" /mnt/file

# Now nobody refers to the old extents, and their room is free.
sync
