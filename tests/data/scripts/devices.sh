# SPDX-License-Identifier: GPL-2.0-only
mkfs.btrfs -q -f -L first /dev/sdi; mkdir -p /mnt/sdi; mount /dev/sdi /mnt/sdi; cd /mnt/sdi
ids() { sed -E 's/[0-9a-f]{8}-[0-9a-f-]{27}/UUID/g; s/^(csum\t+)0x[0-9a-f]+/\10xSUM/; s/^(root\t+)[0-9]+/\1ROOT/'; }
head -c 3000000 /dev/zero > f; sync
for unit in '' -b -m -h -g -k --iec -H; do btrfs filesystem usage $unit .; btrfs device usage $unit .; done
btrfs filesystem usage /tmp; echo $?; btrfs filesystem usage nope; btrfs device usage nope; btrfs filesystem usage /mnt/sdi | head -3
btrfs device scan /dev/sdi; btrfs device scan -u /dev/sdi; btrfs device scan nope; btrfs device scan f; echo $?; btrfs device ready /dev/sdi; echo $?
btrfs device stats .; btrfs device stats -z /dev/sdi; btrfs device stats nope; btrfs device stats /tmp; echo $?; btrfs balance status .; btrfs balance cancel .; btrfs balance pause .; echo $?; btrfs balance status /tmp
btrfs filesystem label .; btrfs filesystem label . second; btrfs filesystem label .; btrfs filesystem label /dev/sdi third; echo $?; btrfs filesystem show . | ids; cd /; umount /mnt/sdi
btrfs inspect-internal dump-super /dev/sdi | ids; btrfs inspect-internal dump-super -f /dev/sdi | ids | grep -B 99 '^backup_roots'; btrfs inspect-internal dump-super -a /dev/sdi | grep bytenr; btrfs inspect-internal dump-super -i 1 /dev/sdi | head -3; btrfs inspect-internal dump-super -s 1 /dev/sdi | head -1
btrfs inspect-internal dump-super /tmp/nope; echo $?; btrfs filesystem label /dev/sdi; btrfs filesystem label /dev/sdi fourth; btrfs filesystem label /dev/sdi; btrfs inspect-internal dump-super /dev/sdi | grep -E '^(label|generation)'
mkfs.btrfs -q -f -n 4k -m single --csum xxhash -O ^no-holes -b 1G /dev/sdi; mount -o compress=zstd /dev/sdi /mnt/sdi; cd /mnt/sdi; head -c 2000000 /dev/zero > f; xfs_io -f -c "pwrite -q 0 5000000" g; sync
btrfs filesystem usage .; btrfs device usage .; xfs_io -c "pwrite -q 0 4K" -c fsync g; cp /dev/null h; btrfs device scan -u; cd /; umount /mnt/sdi; btrfs inspect-internal dump-super /dev/sdi | ids
