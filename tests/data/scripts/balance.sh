#!/bin/bash
# SPDX-License-Identifier: GPL-2.0-only
mkfs.btrfs -q -f -b 4G /dev/sdb
mkdir -p /mnt/a
mount /dev/sdb /mnt/a
cd /mnt/a
chunks() {
    btrfs filesystem usage -b /mnt/a | grep -E 'unallocated|^(Data|Metadata|System)' | sed 's/Used.*(/(/'
}
for i in 1 2 3 4; do
    fallocate -l 100M file$i
    xfs_io -c "pwrite -q -S $i 0 3M" file$i
    btrfs subvolume snapshot -r . snap$i
    sync
done
cp --reflink=always file1 clone
chunks
btrfs balance start -dlimit=1 .
btrfs balance start -dusage=50,limit=2 -musage=80 .
for filters in -d -dusage=0 -v\ -dusage=5 -v\ -mlimit=1 -dusage=101 -dusage -dfoo=1 -dconvert=raid1 \
    -mconvert=single -f\ -mconvert=single,soft -s -f\ -s -dsoft -ddrange=1..5 -dlimit=x \
    -dprofiles=foo -dprofiles=single\|dup -mprofiles=dup -ddevid=0 -ddevid=2 -dvrange=9..2 \
    -dvrange=0..1 -dstripes=2..3 -mconvert=dup --full-balance; do
    btrfs balance start $filters /mnt/a
    echo "$? $filters"
done
chunks
for command in status pause cancel resume; do
    btrfs balance $command /mnt/a
    echo "$? $command"
done
btrfs balance start -d /nothing
btrfs balance start -d file1
touch /tmp/file
btrfs balance start -d /tmp/file
btrfs balance start -d
md5sum file1 file3 file4 clone snap1/file1
for size in 3g 2g 1500m 300m; do
    btrfs filesystem resize $size /mnt/a
    echo "$? $size"
    chunks
done
md5sum file1 clone
cd /
umount /mnt/a
btrfs check /dev/sdb > /dev/null 2>&1
echo $?
for tree in chunk dev root; do
    btrfs inspect-internal dump-tree -t $tree /dev/sdb | grep -c -E 'item'
done
