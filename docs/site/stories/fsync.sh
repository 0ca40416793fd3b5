# SPDX-License-Identifier: GPL-2.0-only

# A directory with four files, all committed.
mkfs.btrfs -q -n $NODESIZE /dev/sdx
mount /dev/sdx /mnt
mkdir /mnt/dir
touch /mnt/dir/a /mnt/dir/b /mnt/dir/c /mnt/dir/d
sync

# Two more files, in memory.
touch /mnt/dir/new1 /mnt/dir/new2

# The fsync of the directory writes a log of what is new. Before Linux 5.17 it has two items for a
# name, DIR_ITEM and DIR_INDEX; since then it has the second alone.
xfs_io -c fsync /mnt/dir

# One is deleted, and the directory is logged again.
rm /mnt/dir/a
xfs_io -c fsync /mnt/dir

# A commit has all of it, and forgets the log.
sync
