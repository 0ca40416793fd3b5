# SPDX-License-Identifier: GPL-2.0-only
mkfs.btrfs -q -n 4096 /dev/sdx
mount /dev/sdx /mnt
# names of one hash, found by trying
touch '/mnt/n00000064tw0V' '/mnt/n00000136VlbO'
touch /mnt/another
umount /mnt
