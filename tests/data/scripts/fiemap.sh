# SPDX-License-Identifier: GPL-2.0-only
mkfs.btrfs -q -f /dev/sdi
mkdir -p /mnt/sdi; mount /dev/sdi /mnt/sdi; cd /mnt/sdi
for ((i = 0; i < 20; i += 2)); do xfs_io -f -c "pwrite -q -S $i $((i * 4096)) 4K" f; done
sync
xfs_io -c "fiemap -v" f; xfs_io -c "fiemap -v 8K 16K" f; xfs_io -c "fiemap 10K 2K" f; xfs_io -c "fiemap -v 70K 1M" f
filefrag -v f
truncate -s 1M f; xfs_io -c "fiemap -v" f; xfs_io -c "fiemap -v 100K 8K" f
