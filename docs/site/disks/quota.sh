# SPDX-License-Identifier: GPL-2.0-only
mkfs.btrfs -q -n 4096 /dev/sdx
mount /dev/sdx /mnt
btrfs quota enable /mnt
btrfs subvolume create /mnt/home
xfs_io -f -c "pwrite -q 0 1M" /mnt/home/file
sync
btrfs subvolume snapshot /mnt/home /mnt/copy
xfs_io -c "pwrite -q 0 256K" /mnt/copy/file
btrfs qgroup limit 2M /mnt/home
umount /mnt
