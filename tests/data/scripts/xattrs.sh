# SPDX-License-Identifier: GPL-2.0-only
mkfs.btrfs -q -f /dev/sdi; mkdir -p /mnt/sdi; mount /dev/sdi /mnt/sdi; cd /mnt/sdi; touch f; mkdir -p d/e; ln -s f l
set_one() { setfattr -n "$1" -v "$2" f; }
set_one user.a "plain text"; set_one user.b 0x00ff10; set_one user.c 0sAAEC; set_one user.d 'q"uo\te'; set_one user.e ""; setfattr -n user.f f; set_one trusted.t 5
set_one user.g '"a\012b\"c\\d"'; set_one user.h 0x610062; set_one user.i 0x6162; set_one user.j 0x6; echo $?; set_one user.k 0xzz; set_one user.m '"unbal'; set_one user.n 0x61626300
set_one user.o 0x6162636465666768690a; set_one user.p 0x61626364650a
for e in "" "-e hex" "-e text" "-e base64"; do getfattr -d $e f | od -c; done; getfattr -n user.b f; getfattr -n user.b -e hex f; getfattr -n user.zz f; echo $?; getfattr f; getfattr -d -m - f
getfattr -d -m trusted f; getfattr --only-values -n user.a f; getfattr --only-values -d f | od -c; getfattr -d nope; echo $?; getfattr -n user.a --absolute-names /mnt/sdi/f; getfattr -n user.a /mnt/sdi/f | tail -n +2
setfattr -n user.x -v y d d/e; getfattr -R -d d; setfattr -x user.zz f; setfattr -n user -v 3 f; setfattr -n zork.x -v 3 f; setfattr -n user.x nope; echo $?; setfattr -h -n user.x -v 3 l; setfattr -h -n trusted.x -v 3 l
getfattr -h -d -m - l; getfattr -d -m - l | head -3; setfattr; echo $?; setfattr f; getfattr; echo $?; getfattr --match=user.a f; getfattr -d -e zork f; getfattr -d l | head -2; setfattr -x user.a f nope; getfattr -n user.a f
btrfs subvolume snapshot -r . ro > /tmp/x; setfattr -n user.x -v 1 ro/f; setfattr -x user.b ro/f; chattr +i f; setfattr -n user.x -v 1 f; chattr -i f; cd /; umount /mnt/sdi
