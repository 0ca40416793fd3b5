# SPDX-License-Identifier: GPL-2.0-only
mkfs.btrfs -q -n 4096 /dev/sdx
mount /dev/sdx /mnt
btrfs subvolume create /mnt/work
for i in {1..40}; do
    echo "this is file $i" >/mnt/work/file$i
done
btrfs subvolume snapshot /mnt/work /mnt/copy
btrfs subvolume delete /mnt/work
umount /mnt
