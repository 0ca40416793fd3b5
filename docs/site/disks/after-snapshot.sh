# SPDX-License-Identifier: GPL-2.0-only
mkfs.btrfs -q -n 4096 /dev/sdx
mount /dev/sdx /mnt
for i in {1..60}; do
    echo "this is file $i" >/mnt/file$i
done
btrfs subvolume snapshot -r /mnt /mnt/snap
chmod 600 /mnt/file30
umount /mnt
