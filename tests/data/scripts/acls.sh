# SPDX-License-Identifier: GPL-2.0-only
mkfs.btrfs -q -f /dev/sdi; mkdir -p /mnt/sdi; mount /dev/sdi /mnt/sdi; cd /mnt/sdi; umask 022; touch f; chmod 640 f; mkdir d
shown() { getfacl -c "$1"; getfattr -e hex -d -m '^system' "$1"; stat -c '%n %a' "$1"; }
try() { setfacl "$@"; echo "$? $*"; shown "${@: -1}"; }
getfacl f; try -m u:2000:rw f; try -m g:2005:r-x,u:2007:--- f; getfacl f; try -m m::r f; getfacl -E f; try -x u:2000 f; try -n -m u:2009:rwx f; chmod 600 f; shown f; chmod 675 f; shown f
try -b f; try -m u::rwx,g::r-x,o::--- f; try -d -m u:2000:rwx d; getfacl d; try -m d:u:2005:rx,u:2003:x d; getfacl -d d; getfacl -a d; touch d/n; mkdir d/s; mkfifo d/p; echo x > d/w; ln -s n d/l
for one in d/n d/s d/p d/w; do shown $one; done; umask 077; touch d/o; mkdir -m 751 d/t; mkdir -p d/q/r; umask 022; for one in d/o d/t d/q/r; do shown $one; done
cp f d/copy; shown d/copy; xfs_io -f -c "pwrite -q 0 5" d/x; shown d/x; for i in 1 2 3; do echo $i > d/many$i; done; shown d/many2; btrfs subvolume create d/sub; shown d/sub
try -k d; try -R -m u:2008:rwX d; for one in d/n d/s d/w; do shown $one; done; try --set u::rw,g::r,o::-,u:2004:rwx d; getfacl -R d/q; getfacl -R -n -p d/s
try -m zork f; try -m u:zork:r f; try -m u:1:rz f; try -m u:2000:r,g:zork:r f; setfacl -m u:2001:r nope; getfacl nope; setfacl; setfacl f; try -d -m u:2001:r f; try -x u:2999 f
try -m root:rw f; getfacl f; getfacl -n f; try -m o::rwx f; try -m o:r f; try -m u:2001:7,g:2002:5 f; getfacl f > /tmp/acl; setfacl -b f; try -M /tmp/acl f; setfacl -b f; getfacl d | setfacl -M - f; shown f
getfacl -e f; getfacl /mnt/sdi/f | tail -n +2; getfacl --omit-header --absolute-names /mnt/sdi/f; getfacl -s d/w f; setfacl -b d/w; getfacl -s d/w; chmod u+s,g+s,o+t f d; getfacl f d | head -12; try -m user:2001:rwx,group::rw,mask:r f
setfacl -x m f; shown f; chattr +i f; setfacl -b f; chattr -i f; btrfs property set . ro true; setfacl -b f; btrfs property set . ro false; cp -p d/n kept; shown kept; cp -a d/s as; shown as
umask 0; touch open; mkdir wide; mkdir -m 2777 more; mkfifo -m 666 pipe; mknod -m 600 device c 1 3; mknod block b 7 9; stat -c '%n %a %F' open wide more pipe device block; umask 022; mkfifo pipe nope/pipe; mknod device c 1 3
chmod 751 f; cp f plain; cp -p f kept2; chown 7:8 f; cp -p f kept3; stat -c '%n %a %u %g' plain kept2 kept3
cd /; umount /mnt/sdi; mount /dev/sdi /mnt/sdi; cd /mnt/sdi; shown d; cd /; umount /mnt/sdi
