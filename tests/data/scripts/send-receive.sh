# SPDX-License-Identifier: GPL-2.0-only
#!/bin/bash
DEV=/dev/sdi
MNT=/mnt/sdi
mkfs.btrfs -q -f $DEV
mkdir -p $MNT
mount $DEV $MNT
mkdir $MNT/d
for ((i=1;i<=100;i++)); do echo -n > $MNT/d/file_$i; done
xfs_io -f -c "pwrite -S 0xab 0 64K" $MNT/foo
cp --reflink=always $MNT/foo $MNT/bar
sync
xfs_io -c "fiemap -v" $MNT/foo
btrfs subvolume snapshot -r $MNT $MNT/snap1
echo hi >> $MNT/foo
btrfs subvolume snapshot -r $MNT $MNT/snap2
btrfs send -f /tmp/1.send $MNT/snap1
btrfs send -p $MNT/snap1 -f /tmp/2.send $MNT/snap2
ls -l /tmp | grep send
od -A d -t x1 $MNT/foo | head -3
md5sum $MNT/foo
start=$(date +%s%N)
xfs_io -c fsync $MNT/d
end=$(date +%s%N)
echo "fsync took $(( (end - start) / 1000 )) us"
ls $MNT | sort -r
find $MNT -maxdepth 1 -type f
stat -c '%s %i %n' $MNT/foo
filefrag -v $MNT/foo
umount $MNT
mkfs.btrfs -q -f /dev/sdj; mount /dev/sdj $MNT
btrfs receive -f /tmp/1.send $MNT
btrfs receive -f /tmp/2.send $MNT
md5sum $MNT/snap2/foo
