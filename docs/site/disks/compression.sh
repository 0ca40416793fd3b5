# SPDX-License-Identifier: GPL-2.0-only
mkfs.btrfs -q -n 4096 /dev/sdx
mount -o compress=zstd /dev/sdx /mnt
xfs_io -f -c "pwrite -q -S 0x61 0 1M" /mnt/alike
head -c 512K /dev/urandom >/mnt/random
umount /mnt
