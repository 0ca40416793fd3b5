#!/bin/bash
# SPDX-License-Identifier: GPL-2.0-only
# needs fsstress
mkfs.btrfs -q -f /dev/sdb
mkdir -p /mnt/a
mount -o noatime /dev/sdb /mnt/a
cd /mnt/a
try() {
    rm -rf d
    # flags that could not be read are whatever was in memory
    fsstress -d d "$@" | sed -E 's/(getattr [^ ]+) [0-9]+ -1/\1 X -1/'
    echo "${PIPESTATUS[0]}"
    sync
    find d | sort | while read -r name; do
        stat -c '%n %F %h %u %g' "$name"
        [ -f "$name" ] && stat -c '%s %b' "$name" && md5sum < "$name" && getfattr -d -m - "$name" | sed 1d
    done
}
try -n 100 -s 5 -v
try -n 60 -s 6 -v -V -w -r
try -n 150 -s 7 -v -z -f creat=5,mkdir=5,link=3,symlink=3,rename=5,rexchange=5 -f rwhiteout=5 -f unlink=3 -f rmdir=3 \
    -f mknod=3 -f setfattr=5
try -n 60 -s 8 -v -R -f creat=5 -f write=5
try -n 50 -s 9 -l 2 -x 'pwd; ls | wc -l; false' -X 3
try -n 50 -s 10 -c
{
    try -n 250 -s 11 -v
    try -n 250 -s 12 -v -f sync=10 -m 5
} | md5sum
