# SPDX-License-Identifier: GPL-2.0-only
mkfs.btrfs -q -n 4096 /dev/sdx
mount /dev/sdx /mnt
mkdir /mnt/a /mnt/b
echo "one file, many names" >/mnt/a/first
for i in {1..20}; do
    ln /mnt/a/first /mnt/a/name$i
done
ln /mnt/a/first /mnt/b/elsewhere
umount /mnt
