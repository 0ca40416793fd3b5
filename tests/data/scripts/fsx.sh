#!/bin/bash
# SPDX-License-Identifier: GPL-2.0-only
# needs fsx
mkfs.btrfs -q -f /dev/sdb
mkdir -p /mnt/a
mount /dev/sdb /mnt/a
cd /mnt/a
try() {
    rm -f f f.fsx*
    fsx "$@" f
    echo $?
    md5sum f f.fsxlog
    stat -c '%s %b' f
    sync
    xfs_io -c 'fiemap -v' f | awk 'NR > 2 { print $2, $4, $5 }'
    btrfs filesystem du --raw f
}
try -N 300 -S 5 -d
try -N 500 -S 7 -q
try -N 400 -S 99 -p 10 -y
try -N 200 -S 3 -d -Z -r 4096 -w 4096 -t 4096 -R -W
try -N 300 -S 4 -p 7 -e 1 -c 10 -X
try -N 300 -S 12 -l 1m -o 100k -m 0x1000:0x20000
try -N 300 -S 8 -b 100 -p 9 -O -o 8192
try -N 200 -g x -H -J -K -B -E -q
try -N 200 -S 21 -F -z -u -C -I -0 -a -l 50000 -j abc -D 180 -W
