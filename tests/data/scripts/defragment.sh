# SPDX-License-Identifier: GPL-2.0-only
# What is defragmented: extents of pieces, by threshold, range and compression; what stays.
mkfs.btrfs -q -f /dev/sda
mkdir -p /mnt/a
mount /dev/sda /mnt/a
cd /mnt/a
pieces() { # file, pieces, bytes of a piece
    for ((i = 0; i < $2; i++)); do
        xfs_io -f -c "pwrite -q -S $((i % 200 + 1)) $((i * $3)) $3" $1
        xfs_io -f -c "pwrite -q $((i * 4096)) 4K" filler-$1
        sync -f .
    done
}
# without the places on disk: threads that compress decide them
shown() { xfs_io -c "fiemap -v" $1 | awk '{ print $1, $2, $4, $5 }'; }
pieces small 12 8192
shown small
btrfs filesystem defragment small
shown small
pieces large 6 204800
btrfs filesystem defragment -t 100K large
shown large
btrfs filesystem defragment -s 0 -l 500000 large
shown large
pieces end 5 5000
btrfs filesystem defragment end
shown end
pieces holes 4 16384
xfs_io -c "fpunch 16K 16K" -c "falloc -k 64K 32K" holes
sync -f .
btrfs filesystem defragment holes
shown holes
xfs_io -f -c "pwrite -q 0 1M" one
sync -f .
btrfs filesystem defragment one
shown one
btrfs filesystem defragment -clzo one
shown one
btrfs filesystem defragment one
shown one
pieces zipped 3 131072
btrfs filesystem defragment -v -czstd zipped
shown zipped
btrfs subvolume snapshot . s1
btrfs filesystem defragment -f small
mkdir d
mv small d
cp --reflink=always holes d/clone
btrfs filesystem defragment -r -v d | sort
sync -f .
shown d/small
shown d/clone
shown s1/small
btrfs filesystem defragment missing
echo $?
cd /
umount /mnt/a
mount -o compress=lzo /dev/sda /mnt/a
cd /mnt/a
xfs_io -f -c "pwrite -q 0 16K" -c fsync -c "falloc 16K 16K" -c "pwrite -q 32K 16K" -c fsync prealloc
btrfs filesystem defragment -czstd prealloc
shown prealloc
btrfs inspect-internal dump-tree -t 5 /dev/sda | grep -c "compression 3 (zstd)"
touch inplace
chattr +C inplace
for ((i = 0; i < 4; i++)); do xfs_io -c "pwrite -q $((i * 8192)) 8192" -c fsync inplace; xfs_io -f -c "pwrite -q 0 4K" -c fsync "between$i"; done
shown inplace
btrfs filesystem defragment inplace
sync -f .
shown inplace
cd /
umount /mnt/a
