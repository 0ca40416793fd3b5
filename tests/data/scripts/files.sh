# SPDX-License-Identifier: GPL-2.0-only
mkfs.btrfs -q -f /dev/sdi
mkdir -p /mnt/sdi
mount -o nospace_cache /dev/sdi /mnt/sdi || mount /dev/sdi /mnt/sdi
cd /mnt/sdi
mkdir -p a/b/c; touch a/b/c/f a/g; ln a/g a/h; ln -s g a/l; mv a/g a/b/
ls -l a a/b | sed 's/ \+/ /g'
ls -i a
rm a/h; rmdir a/nope; rm a; rm -r a/b/c; mkdir a
cat a/l nope
xfs_io -f -c "pwrite 0 1M" -c "fpunch 64K 64K" -c "falloc 2M 1M" -c "fzero 512K 4K" -c fsync f1
xfs_io -c "fiemap -v" f1; xfs_io -c fiemap f1
xfs_io -c "seek -a -r 0" f1
xfs_io -c "pwrite -b 4K -S 0x11 4K 8K" -c "truncate 900K" f1
stat -c '%n %s %b %h %F %a' f1 a/l a
dd if=/dev/zero of=f2 bs=4K count=10 conv=notrunc 2>&1 | head -2
truncate -s 1G f3; stat -c '%s %b' f3
cp f1 f4; cmp f1 f4 && echo same
xfs_io -f -c "reflink f1 0 0 64K" f5
xfs_io -c "dedupe f1 0 0 64K" f4
sync
filefrag f1 f4 f5
filefrag -v f5
chmod 600 f1; stat -c %A f1; chmod u+x,g=r f1; stat -c %a f1
setfattr -n user.a -v b f1; getfattr -d f1; getfattr -n user.zz f1
find . -name 'f*' -size +100k | sort
wc -c f1 f2
btrfs subvolume create sv; btrfs subvolume snapshot sv sv2; btrfs subvolume snapshot -r nope x; btrfs subvolume delete sv2
btrfs property set sv ro true; touch sv/x; btrfs property get sv ro
echo x > sv/y
btrfs send sv 2>/dev/null | md5sum | wc -c
btrfs send f1
cd /
umount /mnt/sdi; umount /mnt/sdi
mount /dev/sdi /mnt/sdi; md5sum /mnt/sdi/f1; mount | grep -c sdi
mount -o remount,ro /mnt/sdi; touch /mnt/sdi/q; umount /mnt/sdi
mount -o bogus /dev/sdi /mnt/sdi
