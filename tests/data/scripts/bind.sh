# SPDX-License-Identifier: GPL-2.0-only
mkfs.btrfs -q -f /dev/sdi; mkdir -p /mnt/sdi /mnt/other /mnt/third; mount /dev/sdi /mnt/sdi; cd /mnt/sdi; mkdir -p d/e; echo x > d/f; btrfs subvolume create s > /dev/null; touch s/in; cd /
mount --bind /mnt/sdi /mnt/other; ls /mnt/other; echo y > /mnt/other/new; cat /mnt/sdi/new; mount --bind /mnt/sdi/d /mnt/third; ls /mnt/third; grep /mnt/third /proc/mounts | grep -o 'subvolid=[^ ]*'
cp --reflink=always /mnt/sdi/d/f /mnt/other/clone; cat /mnt/sdi/clone; ln /mnt/sdi/d/f /mnt/third/link; mv /mnt/third/f /mnt/other/moved; ls /mnt/sdi /mnt/third; xfs_io -f -c "reflink /mnt/third/e/nope" /mnt/other/c; xfs_io -f -c "reflink /mnt/other/moved 0 0 0" /mnt/third/e/c; cat /mnt/sdi/d/e/c
umount /mnt/third; ls /mnt/third; umount /mnt/sdi; ls /mnt/sdi; ls /mnt/other; touch /mnt/other/late; umount /mnt/other; mount /dev/sdi /mnt/sdi; ls /mnt/sdi
mount -o bind /mnt/sdi/s /mnt/third; grep -o 'subvolid=.*' /proc/mounts | grep subvol | tail -1 | cut -d' ' -f 1; btrfs subvolume show /mnt/third | head -2; umount /mnt/sdi; btrfs subvolume list /mnt/third; umount /mnt/third
mount /dev/nope /mnt/third; echo $?; mount -B /mnt/nope /mnt/third; echo $?; mount --bind /mnt/sdi /mnt/nope; echo $?
