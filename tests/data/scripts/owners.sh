# SPDX-License-Identifier: GPL-2.0-only
mkfs.btrfs -q -f /dev/sdi; mkdir -p /mnt/sdi; mount /dev/sdi /mnt/sdi; cd /mnt/sdi; umask 022
modes() { stat -c '%n %a' "$@"; }; owners() { stat -c '%n %u %g' "$@"; }
mkdir -p d/e; touch d/f d/e/g f; ln -s f l; ln -s nope dangling; ln -s ../f d/l
chmod -R 700 d; chmod -Rv u+x,g-w d; chmod -v 600 f; chmod -v 600 f; chmod -c 600 f; chmod -c 644 f; modes d d/f d/e d/e/g
chmod u+s,g+s f; modes f; chmod 755 nope f; modes f; chmod -f 755 nope; echo $?; chmod -R 711 l; modes f; chmod 755 dangling; chmod; chmod 755; echo $?
chmod --reference=d/f f; modes f; for mode in =r a-r a+rw u=x g=u,o=g u=rwx,g=u-w +t u+s zz 99 0000644 u+rwX -x a+x+s =, o=; do chmod $mode f; modes f; done
for mode in +t 1777 755 g+s 755 u=rwx g=rx =rx 00755 u+s 700 u-s ug+s a=; do chmod $mode d; modes d; done; chmod 755,u+s f; chmod --reference=nope f
chmod 755 d; chown -R 5:6 d; owners f d d/f d/e d/l; chown 7 f; owners f; chown :8 f; owners f; chown 9: f; chown 1.2 f; owners f; chown root:root f
chown zork f; chown :zork f; chown 5:zork f; chown 5 nope; chown -h 5 l; owners l f; chown 5 dangling; chown 6 l; owners f l; chown; chown 5; chgrp -R 55 d
owners d d/f d/e/g d/l; chgrp root f; chgrp zork f; chown --reference=d f; owners f; chgrp --reference=l f; owners f; chown --reference=nope f; chown -R -h 8 d
owners d/l d; chmod 6755 f; chown 4 f; modes f; chmod 2755 d; chown 4 d; modes d; chattr +i f; chmod 600 f; chown 3 f; chgrp 3 f; chattr -i f
btrfs subvolume snapshot -r . ro > /tmp/x; chmod -R 600 ro/d; chown 5 ro/f; chgrp 3 ro/f
touch /tmp/file; chown 3:4 /tmp/file; chmod 640 /tmp/file; owners /tmp/file; modes /tmp/file; cd /; umount /mnt/sdi
