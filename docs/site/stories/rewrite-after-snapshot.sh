# SPDX-License-Identifier: GPL-2.0-only

# Forty files, and a snapshot of them.
mkfs.btrfs -q -n $NODESIZE /dev/sdx
mount /dev/sdx /mnt
for i in {1..40}; do
    echo "this is file $i" >/mnt/file$i
done
btrfs subvolume snapshot -r /mnt /mnt/snap

# One file is changed, in memory.
echo "changed" >/mnt/file20

# The leaf with the file is copied, and each node above it. The snapshot keeps the old ones.
sync

# The snapshot is deleted: its name is gone at once.
btrfs subvolume delete /mnt/snap
sync
