# SPDX-License-Identifier: GPL-2.0-only
mkfs.btrfs -q -n 4096 /dev/sdx
mount /dev/sdx /mnt
mkdir -p /mnt/old/deep
for i in {1..50}; do
    echo "this is file $i" >/mnt/old/deep/file$i
done
btrfs subvolume snapshot -r /mnt /mnt/before
mv /mnt/old /mnt/new
btrfs subvolume snapshot -r /mnt /mnt/after
umount /mnt
