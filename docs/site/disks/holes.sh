# SPDX-License-Identifier: GPL-2.0-only
mkfs.btrfs -q -n 4096 /dev/sdx
mount /dev/sdx /mnt
truncate -s 1G /mnt/all-hole
xfs_io -f -c "pwrite -q 0 4K" -c "pwrite -q 1M 4K" /mnt/two-ends
xfs_io -f -c "pwrite -q 0 64K" -c "fsync" -c "fpunch 16K 32K" /mnt/punched
umount /mnt
