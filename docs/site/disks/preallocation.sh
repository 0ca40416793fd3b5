# SPDX-License-Identifier: GPL-2.0-only
mkfs.btrfs -q -n 4096 /dev/sdx
mount /dev/sdx /mnt
fallocate -l 1M /mnt/file
xfs_io -c "pwrite -q 256K 128K" /mnt/file
umount /mnt
