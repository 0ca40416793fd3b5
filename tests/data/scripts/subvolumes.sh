# SPDX-License-Identifier: GPL-2.0-only
mkfs.btrfs -q -f -n 4k -O no-holes /dev/sdi
mkdir -p /mnt/sdi; mount -o compress=zlib:9,noatime /dev/sdi /mnt/sdi; cd /mnt/sdi
btrfs subvolume create a; btrfs subvolume create a/b; btrfs subvolume create a
mkdir d; btrfs subvolume snapshot d x; btrfs subvolume snapshot a snaps/none; mkdir snaps
btrfs subvolume snapshot -r a snaps; btrfs subvolume snapshot -r a snaps/two
ls -i a snaps/a; stat -c '%i %F' snaps/a/b
head -c 100000 /dev/zero > a/zeros; seq 1 5000 > a/seq; mkdir a/e; mv a/seq a/e/; chmod 751 a/e; chown 7:8 a/e
for i in 1 2 3; do xfs_io -f -c "pwrite -q -S 0x$i$i $((i * 10))K 12K" a/f$i; ln a/f$i a/e/l$i; done
setfattr -n user.x -v y a/f1; ln -s ../f1 a/e/s; mkfifo a/p
btrfs subvolume snapshot -r a snaps/three
btrfs send -q snaps/two > /tmp/two; btrfs send -q -p snaps/two snaps/three > /tmp/three; btrfs send -q --no-data snaps/three | wc -c
wc -c < /tmp/two; btrfs receive --dump < /tmp/three | awk '{print $1}' | sort | uniq -c
btrfs send -p snaps/two snaps/nope > /tmp/x; btrfs send a > /tmp/x
mkdir r; btrfs receive r < /tmp/two; btrfs receive r < /tmp/three; diff <(cd snaps/three; find . | sort) <(cd r/three; find . | sort) && echo same names
cmp snaps/three/e/seq r/three/e/seq && md5sum r/three/e/seq
btrfs receive r < /tmp/two 2>&1 | head -2
rm r/two/zeros; btrfs subvolume delete r/two r/three snaps/a d nope
btrfs filesystem sync /mnt/sdi; xfs_io -c "fiemap -v" a/e/seq | awk '{print NF, $NF}'
chattr +C a/new 2>/dev/null; touch a/new; chattr +C a/new && xfs_io -c "pwrite -q 0 64K" -c fsync a/new && filefrag a/new
fallocate -l 1M a/fa; fallocate -p -o 0 -l 64K a/fa; stat -c '%s %b' a/fa; fallocate -n -o 2M -l 1M a/fa; stat -c %s a/fa
echo "$(find a -type f | sort | head -3)" $(find a -links +1 -name 'f*' | sort) $(ls a | wc -l)
cd /; umount /mnt/sdi
