# SPDX-License-Identifier: GPL-2.0-only
# ls: sizes on disk, orders, marks of kinds.
mkfs.btrfs -q -f /dev/sda
mkdir -p /mnt/a
mount /dev/sda /mnt/a
cd /mnt/a
xfs_io -f -c "pwrite -q 0 100K" big; xfs_io -f -c "pwrite -q 0 5000" small; touch empty; mkdir dir; ln -s big link; ln -s none bad; mkfifo p; chmod +x small; ln -s dir ld
sync
ls -s
ls -si | awk '{print $2,$3}'
ls -S
ls -SF
ls -Sr
ls -p
ls -F
ls -ls | awk '{print $1,$2,$6,$10,$11,$12}'
ls -s big small
ls -sh
ls -lF | awk '{print $9,$10,$11}'
ls -1s dir
ls -sd .
ls -lSn | awk '{print $1,$5,$9}'
cd /
umount /mnt/a
