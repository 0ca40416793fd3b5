# SPDX-License-Identifier: GPL-2.0-only
mkfs.btrfs -q -f /dev/sdi; mkdir -p /mnt/sdi; mount /dev/sdi /mnt/sdi; cd /mnt/sdi; echo x > f; mkdir d
for command in "subvolume sync" "subvolume list" "subvolume delete" "subvolume snapshot" "subvolume snapshot a" "send" "filesystem sync" "filesystem df" "filesystem du" "filesystem label" "filesystem usage" "device usage" "property set" "property set a b" "property get" "quota rescan" \
	"qgroup create" "qgroup create 1/0" "qgroup destroy" "qgroup assign" "qgroup assign 0/5 1/0" "qgroup remove a" "qgroup limit" "qgroup limit 1G" "qgroup show" "inspect-internal dump-tree" "inspect-internal rootid" "inspect-internal inode-resolve" "inspect-internal inode-resolve 5" \
	"inspect-internal logical-resolve" "device ready" "device stats" "filesystem defragment" "inspect-internal dump-super" "filesystem df a b" "filesystem sync a b" "subvolume show a b" "subvolume list a b" "filesystem label a b c" "filesystem du f" "filesystem du d" "filesystem du -s ."; do
	btrfs $command; echo "$? $command"
done
for command in fzero "fzero 0" mmap "mmap 0" "reflink f 0 0 0 9" "reflink f 0" "seek 0 4k" "seek -a 0 4k" "dedupe f 0 0 1 2" fpunch finsert "truncate 1 2" mwrite "mread 0 4"; do xfs_io -c "$command" f; echo "$? $command"; done
for command in link ln mv cp "cp a" "mv a" "ln -s"; do $command; echo "$? $command"; done; cd /; umount /mnt/sdi
