# SPDX-License-Identifier: GPL-2.0-only
mkfs.btrfs -q /dev/sdx
mount /dev/sdx /mnt
for size in 1 100 2048 2049 4096; do
    head -c $size /dev/zero | tr '\0' 'x' >/mnt/of-$size
done
umount /mnt
