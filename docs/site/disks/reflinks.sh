# SPDX-License-Identifier: GPL-2.0-only
mkfs.btrfs -q -n 4096 /dev/sdx
mount /dev/sdx /mnt
xfs_io -f -c "pwrite -q 0 1M" /mnt/original
cp --reflink=always /mnt/original /mnt/copy
sync
xfs_io -c "pwrite -q 512K 4K" /mnt/copy
umount /mnt
