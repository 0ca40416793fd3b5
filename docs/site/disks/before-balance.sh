# SPDX-License-Identifier: GPL-2.0-only
mkfs.btrfs -q -n 4096 /dev/sdx
mount /dev/sdx /mnt
for i in {1..60}; do
    xfs_io -f -c "pwrite -q 0 2M" /mnt/file$i
done
sync
for i in {1..60..2}; do
    rm /mnt/file$i
done
umount /mnt
