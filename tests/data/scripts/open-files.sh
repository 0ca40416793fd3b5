# SPDX-License-Identifier: GPL-2.0-only
# Files that are open while their names come and go; what a close writes back.
mkfs.btrfs -q -f /dev/sda
mkdir -p /mnt/a
mount /dev/sda /mnt/a
orphans() { sync; btrfs inspect-internal dump-tree -t 5 /dev/sda | grep -c ORPHAN; }
exec 3> /mnt/a/foo
echo one >&3
mv /mnt/a/foo /mnt/a/bar
echo two >&3
cat /mnt/a/bar
exec 4< /mnt/a/bar
rm /mnt/a/bar
read -u 4 line; echo "read $line"
echo three >&3
read -u 4 line; echo "read $line"
read -u 4 line; echo "read $line"
umount /mnt/a; echo "umount $?"
mount -o remount,ro /mnt/a; echo "remount $?"
orphans
exec 3>&-
orphans
mount -o remount,ro /mnt/a; echo "remount $?"
exec 4<&-
orphans
# numbers that a command had
{ exec 7> /mnt/a/seven; } > /dev/null
echo seven >&7
opened() { exec 8> /mnt/a/eight; }
opened > /dev/null
echo eight >&8
exec {fd}> /mnt/a/named
echo "$((fd >= 10))"
echo named >&$fd
cat /mnt/a/seven /mnt/a/eight /mnt/a/named
exec 7>&- 8>&-
umount /mnt/a; echo "umount $?"
exec {fd}>&-
{ rm /mnt/a/named; echo x; } > /mnt/a/named
printf 'a\nb\nc\n' > /mnt/a/list
while read a; do echo "got $a"; rm -f /mnt/a/list; done < /mnt/a/list
ls /mnt/a
# who has a file open, or is in a directory
(sleep 1; cat) < /mnt/a/seven > /mnt/a/copy &
sleep 0.2
umount /mnt/a; echo "umount $?"
wait
(cd /mnt/a; sleep 1) &
sleep 0.2
umount /mnt/a; echo "umount $?"
wait
# truncated to nothing: the last close writes back what was written, at once
for name in truncated opened appended; do xfs_io -f -c "pwrite -q 0 12K" /mnt/a/$name; done
sync
exec 5> /mnt/a/truncated
head -c 4096 /dev/zero >&5
head -c 8192 /dev/zero >&5
exec 5>&-
xfs_io -t -c "pwrite -q 0 4K" -c "pwrite -q 4K 4K" /mnt/a/opened
truncate -s 0 /mnt/a/appended
head -c 4096 /dev/zero >> /mnt/a/appended
head -c 8192 /dev/zero >> /mnt/a/appended
: > /mnt/a/empty
: > /mnt/a/empty
head -c 4096 /dev/zero >> /mnt/a/empty
head -c 8192 /dev/zero >> /mnt/a/empty
truncate -s 0 /mnt/a/emptied /mnt/a/emptied
head -c 4096 /dev/zero >> /mnt/a/emptied
head -c 8192 /dev/zero >> /mnt/a/emptied
for name in dd tee cp; do xfs_io -f -c "pwrite -q 0 12K" /mnt/a/$name; done
sync
dd if=/dev/zero of=/mnt/a/dd bs=4096 count=3 status=none
xfs_io -c "pwrite -q 12K 4K" /mnt/a/dd
head -c 8192 /dev/zero | tee /mnt/a/tee > /dev/null
cp --reflink=never /mnt/a/dd /mnt/a/cp
sync
for name in truncated opened appended empty emptied dd tee cp; do
    filefrag -v /mnt/a/$name | awk '/^ +[0-9]+:/ { print $2, $3, $6 }'
done
ls -l /mnt/a | awk '{ print $5, $9 }'
umount /mnt/a; echo "umount $?"
