# SPDX-License-Identifier: GPL-2.0-only
ids() { sed -E 's/[0-9a-f]{8}-[0-9a-f-]{27}/UUID/g'; }
mkfs.btrfs -K -f /dev/sdi | ids; mkfs.btrfs -K -f -L abc -n 4k -m single -O ^no-holes -b 2G --csum xxhash /dev/sdi | ids; mkfs.btrfs -f /dev/sdi | ids; mkfs.btrfs -K -f -R quota /dev/sdi | ids
mkfs.btrfs -K -f -O ^extref,^skinny-metadata,^no-holes -R ^free-space-tree -U 11111111-2222-3333-4444-555555555555 /dev/sdi; mkdir -p /tmp/src; touch /tmp/src/a; mkfs.btrfs -K -f -r /tmp/src /dev/sdi | ids
mkfs.btrfs /dev/sdi; echo $?; mkdir -p /mnt/sdi; mount /dev/sdi /mnt/sdi; mkfs.btrfs -f /dev/sdi; echo $?; umount /mnt/sdi; mkfs.btrfs -q -f /dev/sdi; mount /dev/sdi /mnt/sdi; cd /mnt/sdi; mknod c c 1 3; mknod b b 7 300; mknod c2 c 259 1048575; mkfifo p; echo x > f
stat -c '%n %t %T %F %s' c b c2 p f; stat c | sed -n '3s/.*Inode/Inode/p'; ls -l c b c2 p f; cd /; umount /mnt/sdi; btrfs inspect-internal dump-tree -t fs /dev/sdi | grep -o "rdev .*"
