# SPDX-License-Identifier: GPL-2.0-only
mkfs.btrfs -q -n 4096 /dev/sdx
mount /dev/sdx /mnt
echo "in the last commit" >/mnt/old
sync
echo "only in the log" >/mnt/new
echo "nowhere" >/mnt/lost
xfs_io -c fsync /mnt/new
# here the power fails
