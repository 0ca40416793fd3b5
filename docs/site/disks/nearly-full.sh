# SPDX-License-Identifier: GPL-2.0-only
mkfs.btrfs -q -n 4096 -b 256M /dev/sdx
mount /dev/sdx /mnt
for i in {1..32}; do
    xfs_io -f -c "pwrite -q 0 8M" /mnt/file$i || break
done
umount /mnt
