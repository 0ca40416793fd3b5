# SPDX-License-Identifier: GPL-2.0-only
mkfs.btrfs -q /dev/sdx
mount /dev/sdx /mnt
for ((i = 0; i < 100000; i++)); do
    echo -n >/mnt/file$i
done
umount /mnt
