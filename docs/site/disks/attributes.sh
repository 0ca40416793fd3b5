# SPDX-License-Identifier: GPL-2.0-only
mkfs.btrfs -q -n 4096 /dev/sdx
mount /dev/sdx /mnt
echo "a file" >/mnt/file
setfattr -n user.colour -v blue /mnt/file
setfattr -n user.shape -v round /mnt/file
setfacl -m u:daemon:r /mnt/file
umount /mnt
