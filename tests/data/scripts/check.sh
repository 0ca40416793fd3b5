# SPDX-License-Identifier: GPL-2.0-only
ids() { sed -E 's/[0-9a-f]{8}-[0-9a-f-]{27}/UUID/g'; }; checked() { btrfs check "$@" | ids; echo "${PIPESTATUS[0]}"; }
mkfs.btrfs -q -f /dev/sdi; checked /dev/sdi; mkdir -p /mnt/sdi; mount /dev/sdi /mnt/sdi; cd /mnt/sdi; checked /dev/sdi; btrfs subvolume create s; for ((i = 0; i < 60; i++)); do echo -n > file$i; done
head -c 3000000 /dev/zero > big; cp big s/copy; echo hi > inline; sync; xfs_io -c "pwrite -q 4096 8192" -c "pwrite -q 100k 8k" big; sync; btrfs subvolume snapshot s s2; xfs_io -f -c "falloc 0 1m" pre; setfattr -n user.x -v y big; sync
cd /; umount /mnt/sdi; checked /dev/sdi; checked --check-data-csum /dev/sdi 2>&1 | grep -E 'csum|found'; checked --readonly --mode=lowmem /dev/sdi; mount /dev/sdi /mnt/sdi; btrfs quota enable /mnt/sdi; umount /mnt/sdi; btrfs check /dev/sdi > /dev/null
mkfs.btrfs -q -f -n 4k -m single -R ^free-space-tree /dev/sdi; mount -o compress=zlib /dev/sdi /mnt/sdi; cd /mnt/sdi; for ((i = 0; i < 60; i++)); do echo $i > file$i; done; seq 1 100000 > seq; mkdir -p d; cp seq d/seq; cd /; umount /mnt/sdi; checked /dev/sdi
checked /tmp/nope; checked /dev/null; head -c 1M /dev/zero > /tmp/zeros; checked /tmp/zeros
