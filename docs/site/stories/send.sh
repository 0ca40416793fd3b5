# SPDX-License-Identifier: GPL-2.0-only

# A subvolume with a file, and a snapshot of it.
mkfs.btrfs -q -n $NODESIZE /dev/sdx
mount /dev/sdx /mnt
btrfs subvolume create /mnt/home
echo "the first version" >/mnt/home/file
btrfs subvolume snapshot -r /mnt/home /mnt/monday

# The file changes, and there is another snapshot.
echo "the second version" >/mnt/home/file
btrfs subvolume snapshot -r /mnt/home /mnt/tuesday

# A send of the second snapshot, with the first as its parent, compares their trees. It writes
# nothing to the disk.
btrfs send -q -p /mnt/monday -f /tmp/stream /mnt/tuesday

# A receive of the first snapshot makes a subvolume and writes the file as any process would.
mkdir /mnt/backup
btrfs send -q -f /tmp/whole /mnt/monday
btrfs receive -f /tmp/whole /mnt/backup
sync

# A receive of the difference makes a snapshot of what was received, and changes it.
btrfs receive -f /tmp/stream /mnt/backup
sync
