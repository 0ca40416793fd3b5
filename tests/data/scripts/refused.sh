# SPDX-License-Identifier: GPL-2.0-only
# What xfs_io says of what it cannot open, clone or dedupe; paths of a logical address; statfs.
mkfs.btrfs -q -f /dev/sda
mkfs.btrfs -q -f /dev/sdb
mkdir -p /mnt/a /mnt/b
mount /dev/sda /mnt/a
mount /dev/sdb /mnt/b
cd /mnt/a
xfs_io -f -c "pwrite -q 0 64K" file
xfs_io -f -c "pwrite -q 0 64K" other
cp --sparse=never file /mnt/b/far
mkdir folder
mkfifo fifo
mknod null c 1 3
for source in folder null missing /mnt/b/far; do
    xfs_io -c "reflink $source 0 0 4K" file
    xfs_io -c "dedupe $source 0 0 4K" file
done
xfs_io -f -c "reflink file 0 0 4K" folder
xfs_io -c "reflink file 0 0 4K" folder
xfs_io -a -c "reflink other 0 0 4K" file
chattr +i other
xfs_io -c "dedupe file 0 0 4K" other
xfs_io -r -c "stat" other | grep -c size
chattr -i other
xfs_io other -c "pread -q 0 4K" -r
btrfs -q subvolume create s1
xfs_io -f -c "pwrite -q 0 128K" s1/inner
mkdir s1/d
ln s1/inner s1/d/link
cp --reflink=always s1/inner clone
btrfs subvolume snapshot -r s1 s2
xfs_io -c "truncate 0" s2/inner
sync
address=$(filefrag -v clone | awk '/ 0:/ { print $4 * 4096 }')
btrfs inspect-internal logical-resolve $address .
btrfs inspect-internal logical-resolve $address /mnt/a/s1
btrfs inspect-internal logical-resolve -P $address .
link clone hard; link clone hard; unlink hard; unlink hard
stat -t clone | cut -d ' ' -f 1-6,8-11
stat -f -c '%n %l %s %S %b %f %a %c %d %T %t' /mnt/a
stat -f . | grep -v ID
exec 7< folder
cat folder
echo x > folder
cat < folder
exec 7<&-
umount /mnt/b
cd /
umount /mnt/a
