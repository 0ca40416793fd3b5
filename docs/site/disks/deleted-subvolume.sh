# SPDX-License-Identifier: GPL-2.0-only
mkfs.btrfs -q -n 4096 /dev/sdx
mount /dev/sdx /mnt
btrfs subvolume create /mnt/home
for i in {1..40}; do
    echo "this is file $i" >/mnt/home/file$i
done
btrfs subvolume snapshot /mnt/home /mnt/copy
btrfs subvolume delete /mnt/home
umount /mnt
