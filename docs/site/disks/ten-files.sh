# SPDX-License-Identifier: GPL-2.0-only
mkfs.btrfs -q -n 4096 /dev/sdx
mount /dev/sdx /mnt
for i in 0 1 2 3 4 5 6 7 8 9; do
    echo "this is file $i" >/mnt/file$i
done
umount /mnt
