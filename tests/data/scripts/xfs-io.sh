# SPDX-License-Identifier: GPL-2.0-only
mkfs.btrfs -q -f /dev/sdi; mkdir -p /mnt/sdi; mount -o nodatasum /dev/sdi /mnt/sdi; cd /mnt/sdi; sums() { md5sum "$1"; stat -c %s "$1"; }
xfs_io -f -c "pwrite -N 0 64K" -c "pwrite -V 1 4K 64K" -c "pwrite -F 1000 100" cow; xfs_io -c "pwrite -N -V 1 0 4K" cow; echo $?
xfs_io -d -c "pwrite -N -V 1 -b 64K 0 64K" cow; echo $?; xfs_io -f -s -c "pwrite -q 0 64K" -c "falloc 64K 128K" prealloc
for range in '64K 64K' '0 64K' '0 128K' '100K 100K' '128K 64K'; do xfs_io -d -c "pwrite -N -V 1 -b 128K -S 0x11 $range" prealloc; echo $?; done
xfs_io -c "pwrite -N -V 1 -S 0x22 60K 8K" prealloc; sums prealloc; touch nocow; chattr +C nocow; xfs_io -s -c "pwrite -q 0 64K" nocow
xfs_io -c "pwrite -N -V 1 -S 3 4K 100K" nocow; xfs_io -d -c "pwrite -N -V 1 -b 64K 64K 64K" nocow; sums nocow
seq 1 20000 > /tmp/in; xfs_io -f -c "pwrite -i /tmp/in 0 100000" -c "pwrite -i /tmp/in -s 1000 0 10" -c "pwrite -i /tmp/in -b 64K 5 1M" from; sums from
xfs_io -c "pwrite -i /tmp/nope 0 5" -c "pwrite -q -i cow 200000 5000" from; echo $?; sums from
xfs_io -f -c "pwrite -R -Z 7 -S 9 0 1M" -c "pwrite -R -Z 3 -b 10K 100K 50K" -c "pwrite -R -Z 4000000000 -b 1M 0 4K" -c "pwrite -R -Z 11 2M 10000" random; sums random
xfs_io -f -c "pwrite -q -R -Z 2 -S 9 1M 1M" -c "pwrite -q -Z 1 -R -S 8 1M 100K" random; sums random
for one in "fsync 1" pwrite "pwrite 0" pread falloc "fpunch 0" truncate reflink "dedupe x 0" copy_range seek "seek -d" sync_range "syncfs 1" chattr "fadvise -d" "fadvise -d 0 4k" fadvise "fadvise 0 4k" "funshare 0 4K" "help nope"; do
	xfs_io -c "$one" from; echo $?
done
for offset in 0 20 40; do xfs_io -f -c "pwrite -q ${offset}K 8K" -c fsync holes; done
for one in "-n 1" "-n 2" "-v -n 2" "-n 3 30K" "-n 100" -a "-a -v"; do xfs_io -c "fiemap $one" holes | awk '{ print NF, $1, $2 }'; done
xfs_io -c lsattr holes; xfs_io -c "chattr +s" -c "chattr +Ad" -c "chattr -s" holes; xfs_io -c lsattr holes; lsattr holes; xfs_io -r -c "chattr +i" holes; rm holes; xfs_io -r -c "chattr -i" holes
cd /; umount /mnt/sdi
