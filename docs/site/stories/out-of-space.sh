# SPDX-License-Identifier: GPL-2.0-only

# A small device.
mkfs.btrfs -q -n $NODESIZE -b 128M /dev/sdx
mount /dev/sdx /mnt

# A file gets room, most of what there is.
fallocate -l 40M /mnt/large
sync

# Another one does not fit: the write ends with ENOSPC, where a part of it is there.
xfs_io -f -c "pwrite -q -S 2 0 16M" /mnt/more
sync

# Deleting takes room as well, since tree blocks are copied. The global reserve is kept for that.
rm /mnt/more
sync

# Now there is room for it.
xfs_io -f -c "pwrite -q -S 3 0 2M" /mnt/fits
sync
