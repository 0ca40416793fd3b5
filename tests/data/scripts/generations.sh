# SPDX-License-Identifier: GPL-2.0-only
generation() { btrfs inspect-internal dump-super /dev/sdi | grep ^generation; }; mkdir -p /mnt/sdi
mkfs.btrfs -q -f /dev/sdi; generation; for i in 1 2 3; do mount /dev/sdi /mnt/sdi; umount /mnt/sdi; generation; done
mount /dev/sdi /mnt/sdi; touch /mnt/sdi/x; umount /mnt/sdi; generation; mount /dev/sdi /mnt/sdi; sync; sync; generation; umount /mnt/sdi; generation
mkfs.btrfs -q -f /dev/sdi; mount /dev/sdi /mnt/sdi; generation; sync; generation; touch /mnt/sdi/x; generation; sync; generation; umount /mnt/sdi; generation
mkfs.btrfs -q -f /dev/sdi; mount -o ro /dev/sdi /mnt/sdi; generation; umount /mnt/sdi; generation; mount /dev/sdi /mnt/sdi; xfs_io -f -c "pwrite -q 0 4K" -c fsync /mnt/sdi/f; generation; umount /mnt/sdi; generation
