# SPDX-License-Identifier: GPL-2.0-only
mkfs.btrfs -q -f /dev/sdi; mkdir -p /mnt/sdi; mount /dev/sdi /mnt/sdi; cd /mnt/sdi
xfs_io -f -c "pwrite -q -S 0x61 0 100k" a; sync
xfs_io -c "mmap -w 0 100k" -c "mwrite -S 0x62 4k 10" -c "mwrite 8k 3" -c "msync -s 0 100k" -c munmap a; od -A d -t x1 a
xfs_io -c "mmap -r 0 64k" -c "mread -v 4090 20" a; xfs_io -c "mmap -rw 0 4k" -c "mw -S 7 0 1" -c "mr -v 0 2" a
xfs_io -i -f -c "pwrite -q 0 1M" -c "sync_range -b 0 1M" b; xfs_io -r -c "fiemap -v" b | awk '{print NF}'
xfs_io -c "pread -v 4090 20" -c "pread -v 1 1" a; filefrag a b | sed 's/ extents\?//'; f() { false; local x=$?; echo $x; }; f; false | true; echo "${PIPESTATUS[@]}"; false; echo ${PIPESTATUS[0]}
cd /; umount /mnt/sdi
