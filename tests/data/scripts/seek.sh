# SPDX-License-Identifier: GPL-2.0-only
mkfs.btrfs -q -f /dev/sdi
mkdir -p /mnt/sdi
mount /dev/sdi /mnt/sdi
cd /mnt/sdi
xfs_io -f -c "pwrite 0 1M" -c "fpunch 64K 64K" -c "falloc 2M 1M" -c "fzero 512K 4K" -c fsync f1
for o in "-a -r 0" "-a 0" "-d 0" "-h 0" "-d -r 0" "-h -r 0" "-a 70K" "-d 2M" "-h 2M" "-a -r 66K" "-s -a -r 0" "-d 5M" "-a 5M"; do echo "== $o"; xfs_io -c "seek $o" f1; done
