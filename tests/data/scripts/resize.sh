#!/bin/bash
# SPDX-License-Identifier: GPL-2.0-only
mkfs.btrfs -q -f -b 1G /dev/sdb
mkdir -p /mnt/a
mount /dev/sdb /mnt/a
cd /mnt/a
try() {
    btrfs filesystem resize "$@" /mnt/a
    echo "$? $(btrfs inspect-internal dump-super /dev/sdb | grep -E '^(generation|total_bytes)' | xargs)"
}
for amount in 2g 1G 1:+100m 1:-50m 0X40000000 010000000000 01073741824 ' 1g' 1073741823 max 1:5g; do
    try "$amount"
done
for amount in 2:max 101g 100m -20g +0 +1000 -1000 foo 1:foo 1: :1g cancel 1:cancel max:1g 1.5g 20E +15E \
    +8388607T 1x k +k - 1kk 3x:1g +1:5g -1:max 1::max '1 g' +18446744073709551615 18446744073709551616 ''; do
    try "$amount"
done
try
touch file
for path in file nothing /tmp; do
    btrfs filesystem resize max $path
    btrfs inspect-internal min-dev-size $path
done
for i in 1 2 3 4; do
    fallocate -l 300M file$i
    sync
    btrfs inspect-internal min-dev-size /mnt/a
    try +1g
done
rm file2
btrfs inspect-internal min-dev-size --id 1 /mnt/a
btrfs inspect-internal min-dev-size --id 2 /mnt/a
btrfs inspect-internal min-dev-size --id x /mnt/a
btrfs inspect-internal min-dev-size
sync
btrfs filesystem usage -b /mnt/a | grep -E 'size|allocated|slack|Data'
cd /
umount /mnt/a
for tree in chunk dev; do
    btrfs inspect-internal dump-tree -t $tree /dev/sdb | grep -v -E 'uuid|fsid|leaf|progs'
done
mount -o ro /dev/sdb /mnt/a
try 1g
umount /mnt/a
