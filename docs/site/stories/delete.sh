# SPDX-License-Identifier: GPL-2.0-only

# Three files: an inline one, and two with extents.
mkfs.btrfs -q -n $NODESIZE /dev/sdx
mount /dev/sdx /mnt
echo "inline" >/mnt/inline
xfs_io -f -c "pwrite -q 0 64K" /mnt/first
xfs_io -f -c "pwrite -q 0 64K" /mnt/second
sync

# Two are deleted, in memory. A crash brings them back.
rm /mnt/inline /mnt/first

# The commit has their items no more. The bytes of the data still lie where they were, and may be
# used.
sync

# A new file gets a place of its own. Which one it gets is up to the allocator.
xfs_io -f -c "pwrite -q -S 7 0 64K" /mnt/third
sync
