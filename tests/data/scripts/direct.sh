# SPDX-License-Identifier: GPL-2.0-only
# What O_SYNC and O_DIRECT write, call by call, and that FIEMAP of xfs_io writes back first.
mkfs.btrfs -q -f /dev/sda
mkdir -p /mnt/a
mount /dev/sda /mnt/a
cd /mnt/a
xfs_io -f -s -c "pwrite -q 0 64K" synced
xfs_io -f -d -c "pwrite -q 0 64K" blocks
xfs_io -f -d -c "pwrite -q -b 16K 0 64K" larger
xfs_io -f -c "pwrite -q 64K 64K" waits
xfs_io -d -c "pwrite -q -b 64K 0 64K" waits
xfs_io -f -d -c "pwrite -q -b 16K 100 20K" unaligned
xfs_io -f -d -c "pwrite -q 0 1000" small
touch inplace
chattr +C inplace
xfs_io -c "pwrite -q 64K 64K" inplace
xfs_io -d -c "pwrite -q -b 64K 0 64K" inplace
xfs_io -d -c "pwrite -q -b 32K 16K 64K" inplace
touch compressed
btrfs property set compressed compression zlib
xfs_io -d -c "pwrite -q -b 256K 0 512K" compressed
xfs_io -f -c "pwrite -q 0 128K" -c fsync again
xfs_io -s -c "pwrite -q -b 32K 4K 64K" again
xfs_io -f -c "pwrite -q 0 8K" read
xfs_io -d -c "pread -q 0 4K" read
dd if=/dev/zero of=dd-direct bs=8K count=4 oflag=direct status=none
dd if=/dev/zero of=dd-sync bs=8K count=4 oflag=sync status=none
dd if=/dev/zero of=dd-dsync bs=8K count=4 oflag=dsync status=none
for file in *; do xfs_io -c "fiemap -v" $file; done
for file in synced blocks larger; do
    ino=$(stat -c %i $file)
    btrfs inspect-internal dump-tree -t 5 /dev/sda | grep -c "($ino EXTENT_DATA"
done
xfs_io -f -c "pwrite -q 64K 64K" delalloc
filefrag -v delalloc
xfs_io -c "fiemap -l" -c "fiemap -l 4k 8k" -c "fiemap 100k 4k" delalloc
cd /
umount /mnt/a
mount /dev/sda /mnt/a
cd /mnt/a
xfs_io -f -c "pwrite -q 0 16K" -c "falloc -k 16K 8K" -c "falloc -k 64K 8K" -c fsync behind
xfs_io -c "fiemap -v" -c "fiemap 60K 16K" -c "fiemap 0 64K" -c "fiemap 100K" behind
filefrag -v behind
cd /
umount /mnt/a
