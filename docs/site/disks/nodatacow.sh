# SPDX-License-Identifier: GPL-2.0-only
mkfs.btrfs -q -n 4096 /dev/sdx
mount /dev/sdx /mnt
touch /mnt/in-place /mnt/copied
chattr +C /mnt/in-place
for file in in-place copied; do
    xfs_io -c "pwrite -q 0 128K" /mnt/$file
done
sync
for file in in-place copied; do
    xfs_io -c "pwrite -q 64K 4K" /mnt/$file
done
umount /mnt
