# SPDX-License-Identifier: GPL-2.0-only
# Appended to and synced: sync goes on where its last writeback ended, others begin in front.
mkfs.btrfs -q -f /dev/sda
mkdir -p /mnt/a
mount /dev/sda /mnt/a
cd /mnt/a
for ((i = 0; i < 5; i++)); do
xfs_io -f -c "pwrite -q $((i * 5000)) 5000" end
sync
xfs_io -c "fiemap -v" end
done

for ((i = 0; i < 4; i++)); do
    xfs_io -f -c "pwrite -q $((i * 6000)) 9000" commanded
    btrfs filesystem sync .
    xfs_io -f -c "pwrite -q $((i * 6000)) 9000" -c fsync fsynced
    xfs_io -f -c "pwrite -q $((i * 6000)) 9000" -c "pwrite -q 0 20" unmounted
    cd /; umount /mnt/a; mount /dev/sda /mnt/a; cd /mnt/a
done
for ((i = 0; i < 3; i++)); do
    xfs_io -f -c "pwrite -q $((i * 6000)) 9000" mixed -c fsync
    xfs_io -c "pwrite -q 100 9000" mixed
    sync
    xfs_io -c "pwrite -q 4000 5000" mixed
    btrfs filesystem sync .
    xfs_io -c "pwrite -q 1000 12000" mixed
    sync
done
for file in *; do xfs_io -c "fiemap -v" $file; done
cd /
umount /mnt/a
mount /dev/sda /mnt/a
cd /mnt/a
for ((i = 0; i < 3; i++)); do
    xfs_io -f -c "pwrite -q $((i * 5000)) 5000" each
    sync -f .
    xfs_io -f -c "pwrite -q $((i * 5000)) 5000" every
    xfs_io -c syncfs every
done
for file in each every; do xfs_io -c "fiemap -v" $file; done
cd /
umount /mnt/a
