# SPDX-License-Identifier: GPL-2.0-only
mkdir -p /tmp/src/d/e/f /tmp/src/empty; cd /tmp/src; echo hello > a; ln a d/hard; head -c 5000 /dev/zero | tr '\0' x > b; head -c 3000000 /dev/zero | tr '\0' y > d/big; ln -s ../a d/l; ln -s nope dangling
touch d/e/none; mkfifo p; chown 5:6 b; chmod 4751 b; chmod 1777 d; chmod 640 a; touch -d @1000000000 b d/big; for size in 2047 2048 2049 4095 4096 4097; do head -c $size /dev/zero | tr '\0' z > i$size; done; seq 1 200000 > d/e/f/seq
chmod 700 .; chown 9:9 .; mkfs.btrfs -q -f --rootdir /tmp/src /dev/sdi; mkdir -p /mnt/sdi; mount /dev/sdi /mnt/sdi; cd /mnt/sdi
find . -printf '%p %y %s %m %n %U %G %l\n' | sort; for one in a b d d/e d/l p i4095 i4096 empty; do stat -c '%n %b %W %h %t %T' $one; done; stat -c '%n %Y %X' b d/big; stat -c '%a %u %g %s %b' .; stat -c '%Z' a | wc -c; find . -type f -exec md5sum {} + | sort -k 2
[ $(($(stat -c %i a) - $(stat -c %i /tmp/src/a))) = 256 ] && echo numbers; [ "$(stat -c %Y a)" = "$(stat -c %Y /tmp/src/a)" ] && echo times; stat -c %y a | grep -c '\.000000000'; [ "$(stat -c %i a)" = "$(stat -c %i d/hard)" ] && echo same
for one in i2047 i2048 i2049 i4095 i4096 i4097 b; do xfs_io -r -c 'fiemap -v' $one | awk -v name=$one 'NR > 2 { print name, $2, $4, $5 }'; done; xfs_io -r -c 'fiemap -v' d/big | awk 'NR > 2 { total += $4 } END { print total }'
echo more > new; mkdir d/e/f/g; rm d/hard b; stat -c %h a; cd /; umount /mnt/sdi; mount /dev/sdi /mnt/sdi; ls /mnt/sdi /mnt/sdi/d/e/f; cat /mnt/sdi/new; umount /mnt/sdi; btrfs check /dev/sdi > /tmp/checked 2>&1; echo $?
mkfs.btrfs -q -f -n 4k -r /tmp/src/d /dev/sdi; mount /dev/sdi /mnt/sdi; ls /mnt/sdi; cat /mnt/sdi/hard; umount /mnt/sdi; mkfs.btrfs -q -f --rootdir /tmp/nope /dev/sdi; echo $?; cd /tmp/src; mkfs.btrfs -q -f --rootdir a /dev/sdi; echo $?
