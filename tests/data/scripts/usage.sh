# SPDX-License-Identifier: GPL-2.0-only
mkfs.btrfs -q -f /dev/sdi; mount /dev/sdi /mnt/new 2>/dev/null || { mkdir -p /mnt/new; mount /dev/sdi /mnt/new; }
cd /mnt/new; btrfs qgroup show .
btrfs quota enable .; btrfs sub cr a; xfs_io -f -c "pwrite -q 0 1M" a/f; cp --reflink a/f a/g; xfs_io -f -c "pwrite -q 0 100k" f2
btrfs qgroup create 1/0 .; btrfs qgroup create 2/77 .
btrfs qgroup assign 0/256 1/0 . ; btrfs qgroup limit 10M 0/256 . ; btrfs qgroup limit -e 5M 1/0 .; sync; btrfs quota rescan -w .
btrfs qgroup assign 1/0 2/77 .; sync; btrfs quota rescan -w .
for o in "" -p -c -prce -F -f --raw --kbytes --si --sort=-rfer --sort=excl,-qgroupid; do btrfs qgroup show $o .; btrfs qgroup show $o a; done | tr "\0" @
btrfs filesystem du .; btrfs fi du -s --raw a f2; btrfs fi du a/nope
btrfs fi df . | sed 's/GlobalReserve.*//'; btrfs fi df --raw . | awk '{print $1 $2}'
btrfs filesystem show . | sed 's/uuid.*/uuid/; s/used.*//'; btrfs filesystem label .
btrfs ins inode-resolve 257 a; btrfs inspect-internal inode-resolve 999 a; mv a/f a/h; btrfs inspect inode-resolve 257 a
btrfs inspect-internal logical-resolve -P $(btrfs ins dump-tree -t 256 /dev/sdi | awk '/disk byte/ {print $5; exit}') .
btrfs property get a; btrfs property get -ts a ro; btrfs prop set a/h compression zstd; btrfs prop get a/h compression; btrfs prop get a/h; btrfs prop get a/h ro
mkdir a/d; chattr +C a/d; touch a/d/n a/.hidden; chattr +c a/g; lsattr a | sort -k 2; lsattr -R . | sort; lsattr -d a; lsattr -a a | sort -k 2; lsattr nope
cd /; umount /mnt/new
