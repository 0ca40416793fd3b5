# SPDX-License-Identifier: GPL-2.0-only
mkfs.btrfs -q -f /dev/sdi; mkdir -p /mnt/sdi; mount /dev/sdi /mnt/sdi; cd /mnt/sdi
ids() { sed -E 's/[0-9a-f]{8}-[0-9a-f-]{27}/UUID/g; s/[0-9]{4}-[0-9-]+ [0-9:]+/TIME/g'; }
mkdir -p d/e; for one in a a/b d/e/c a/b/deep; do btrfs subvolume create $one; done
btrfs subvolume list .; btrfs subvolume get-default .
sync; touch a/x; btrfs subvolume snapshot -r a a/s1; btrfs subvolume snapshot a s2; btrfs subvolume snapshot -r a d/s3
for path in . a a/b d/e/c a/s1 s2 a/b/deep; do btrfs subvolume show $path | ids; done
for options in -a -p -c -g -o -u -q -R -t -s -r -puqRcg -tuq -ts --sort=-rootid --sort=gen,-path --sort=path '-G +8' '-C 7' '-G -8'; do
	echo "list $options"; btrfs subvolume list $options . | ids
done
btrfs subvolume list a; btrfs subvolume list -o a; btrfs subvolume list -a a; btrfs subvolume list -o a/b
btrfs subvolume set-default a; btrfs subvolume get-default .; btrfs subvolume set-default 999 .; btrfs subvolume get-default a/b
btrfs subvolume set-default d; btrfs subvolume set-default nope; btrfs subvolume set-default; btrfs subvolume set-default x .
btrfs subvolume get-default nope; btrfs subvolume get-default; btrfs subvolume show d; btrfs subvolume show nope; btrfs subvolume show
btrfs subvolume show /tmp; btrfs subvolume list /tmp; btrfs subvolume list nope; btrfs subvolume get-default /tmp
btrfs subvolume delete a; btrfs subvolume delete a/s1 d/s3; mkdir r; btrfs property set a/b ro true; btrfs send -q a/b -f /tmp/b
btrfs receive -q -f /tmp/b r; btrfs subvolume show r/b | ids; btrfs subvolume list -R r | ids; btrfs property set a/b ro false
cd /; umount /mnt/sdi; mount /dev/sdi /mnt/sdi; ls /mnt/sdi; grep -c subvol=/a, /proc/mounts; grep -o 'subvolid=256' /proc/mounts
btrfs subvolume show /mnt/sdi/b | ids; btrfs subvolume list /mnt/sdi; btrfs subvolume list -a /mnt/sdi; btrfs subvolume get-default /mnt/sdi
btrfs subvolume create /mnt/sdi/new; btrfs subvolume set-default 257 /mnt/sdi; umount /mnt/sdi
mount -o subvolid=5 /dev/sdi /mnt/sdi; ls /mnt/sdi; touch /mnt/sdi/top; btrfs subvolume get-default /mnt/sdi; umount /mnt/sdi
mount -o subvol=/ /dev/sdi /mnt/sdi; ls /mnt/sdi; umount /mnt/sdi; mount -o subvolid=0 /dev/sdi /mnt/sdi; ls /mnt/sdi; umount /mnt/sdi
mount -o subvol=a /dev/sdi /mnt/sdi; ls /mnt/sdi; umount /mnt/sdi; mount -o subvolid=258 /dev/sdi /mnt/sdi; ls -a /mnt/sdi; umount /mnt/sdi
mount -o subvol=nope /dev/sdi /mnt/sdi; mount -o subvolid=999 /dev/sdi /mnt/sdi
mount -o ro /dev/sdi /mnt/sdi; ls /mnt/sdi; btrfs subvolume set-default 5 /mnt/sdi; umount /mnt/sdi
mount -o subvolid=5 /dev/sdi /mnt/sdi; btrfs subvolume set-default 0 /mnt/sdi; btrfs subvolume get-default /mnt/sdi; btrfs quota enable /mnt/sdi
btrfs subvolume show /mnt/sdi/a | tail -5; btrfs qgroup limit 1G /mnt/sdi/a/b; btrfs subvolume show /mnt/sdi/a/b | tail -5; umount /mnt/sdi
btrfs inspect-internal dump-tree -t root /dev/sdi | grep -A3 DIR_ITEM
