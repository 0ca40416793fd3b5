// SPDX-License-Identifier: GPL-2.0-only
/*
 * Many files that go in one call: what an unlink() of each does to the tree of its subvolume. Only
 * files are taken of which the tree says everything, and that is looked at anew for each of them.
 */
#include "writer/writer.h"

#include <errno.h>
#include <string.h>

#define S_IFMT 0170000u
#define S_IFREG 0100000u
#define ORPHAN_OBJECTID ((uint64_t)-5)
#define INODE_IMMUTABLE (1ULL << 6)
#define INODE_APPEND (1ULL << 7)

/* Whether Python has the inode in memory, or something waits for it. */
static int is_known(const struct bm_unlinks *unlinks, uint64_t ino)
{
	size_t low = 0, high = unlinks->known_count;

	while (low < high) {
		size_t mid = low + (high - low) / 2;

		if (unlinks->known[mid] < ino)
			low = mid + 1;
		else
			high = mid;
	}
	return low < unlinks->known_count && unlinks->known[low] == ino;
}

/* The file that a DIR_ITEM with this one entry leads to: 1, or 0 when it is anything else. */
static int find_file(struct bm_writer *writer, const struct bm_writer_tree *tree,
		     const struct bm_key *key, const uint8_t *name, uint32_t size, uint64_t *ino,
		     struct bm_fault *fault)
{
	const struct btrfs_dir_item *entry;
	struct bm_path path = {0};
	int ret = bm_writer_find(writer, tree, key, &path, fault);

	if (ret)
		return ret < 0 ? ret : 0;
	if (leaf_item(path.node[0], path.slot[0])->size != sizeof(*entry) + size)
		return 0;
	entry = (const void *)item_data(path.node[0], path.slot[0]);
	*ino = entry->location.objectid;
	return entry->location.type == BTRFS_INODE_ITEM_KEY && entry->type == BTRFS_FT_REG_FILE &&
	       entry->name_len == size && !memcmp(entry + 1, name, size);
}

/*
 * Whether an inode is an empty file with this one name and nothing else, and inode item and name
 * lie in one leaf, where btrfs_read_locked_inode() finds the index: 1, or 0 when it is not.
 */
static int is_plain(struct bm_writer *writer, const struct bm_writer_tree *tree, uint64_t ino,
		    uint64_t directory, uint32_t name_size, uint64_t *index, struct bm_fault *fault)
{
	const struct bm_key key = {.objectid = ino, .type = BTRFS_INODE_ITEM_KEY};
	const struct btrfs_inode_item *inode;
	const struct btrfs_inode_ref *ref;
	const struct btrfs_item *items;
	struct bm_path path = {0};
	struct bm_key next;
	int ret = bm_writer_find(writer, tree, &key, &path, fault);

	if (ret)
		return ret < 0 ? ret : 0;
	if (path.slot[0] + 1 >= block_header(path.node[0])->nritems)
		return 0;
	items = leaf_item(path.node[0], path.slot[0]);
	if (items[0].size != sizeof(*inode) || items[1].key.objectid != ino ||
	    items[1].key.type != BTRFS_INODE_REF_KEY || items[1].key.offset != directory ||
	    items[1].size != sizeof(*ref) + name_size)
		return 0;
	inode = (const void *)item_data(path.node[0], path.slot[0]);
	ref = (const void *)item_data(path.node[0], path.slot[0] + 1);
	if (inode->nlink != 1 || (inode->mode & S_IFMT) != S_IFREG ||
	    inode->flags & (INODE_IMMUTABLE | INODE_APPEND) || !ref->index)
		return 0;
	*index = ref->index;
	if (path.slot[0] + 2 < block_header(path.node[0])->nritems)
		next = to_key(&items[2].key);
	else if (!bm_path_upper_bound(&path, &next))
		return 1;
	return next.objectid != ino;
}

static int delete_all(struct bm_writer *writer, const struct bm_writer_tree *tree,
		      const struct bm_key *min, const struct bm_key *max, int backward,
		      struct bm_fault *fault)
{
	int64_t count = bm_writer_delete(writer, tree->id, min, max, backward, fault);

	return count > 0 ? BM_OK : count < 0 ? fault->code : bm_writer_errno(fault, tree, ENOENT);
}

/* __btrfs_unlink_inode(), btrfs_orphan_add(), btrfs_evict_inode() */
static int unlink_file(struct bm_writer *writer, const struct bm_writer_tree *tree, uint64_t ino,
		       uint64_t directory, const struct bm_key *entry, struct bm_fault *fault)
{
	const struct bm_key orphan = {
	    .objectid = ORPHAN_OBJECTID, .type = BTRFS_ORPHAN_ITEM_KEY, .offset = ino};
	const struct bm_key ref = {
	    .objectid = ino, .type = BTRFS_INODE_REF_KEY, .offset = directory};
	const struct bm_key inode = {.objectid = ino, .type = BTRFS_INODE_ITEM_KEY};
	const struct bm_key first = {.objectid = ino};
	const struct bm_key last = {.objectid = ino, .type = UINT8_MAX, .offset = UINT64_MAX};
	const uint8_t nothing = 0;
	const uint32_t size = 0;

	if (delete_all(writer, tree, entry, entry, 0, fault) < 0 ||
	    bm_writer_insert(writer, tree->id, &orphan, &size, 1, &nothing, fault) < 0)
		return fault->code;
	/* the delayed inode item is written, whose bytes nobody will see, and its name goes with it */
	if (bm_writer_update(writer, tree->id, &inode, 0, &nothing, 0, fault) < 0 ||
	    delete_all(writer, tree, &ref, &ref, 0, fault) < 0 ||
	    delete_all(writer, tree, &first, &last, 1, fault) < 0)
		return fault->code;
	return delete_all(writer, tree, &orphan, &orphan, 0, fault);
}

int64_t bm_writer_unlink_files(struct bm_writer *writer, const struct bm_unlinks *unlinks,
			       uint64_t *indexes, struct bm_fault *fault)
{
	const struct bm_writer_tree *tree = bm_writer_tree_of(writer, unlinks->tree, fault);
	struct bm_key key = {.objectid = unlinks->directory, .type = BTRFS_DIR_ITEM_KEY};
	const uint8_t *name = unlinks->names;
	uint64_t left = unlinks->names_size;
	size_t done;

	if (!tree)
		return fault->code;
	for (done = 0; done < unlinks->count; done++) {
		const uint32_t size = unlinks->name_sizes[done];
		uint64_t ino = 0;
		int ret;

		if (size > left)
			return bm_writer_errno(fault, tree, EINVAL);
		bm_name_hashes(name, &size, 1, &key.offset);
		ret = find_file(writer, tree, &key, name, size, &ino, fault);
		if (ret > 0 && is_known(unlinks, ino))
			break;
		if (ret > 0)
			ret = is_plain(writer, tree, ino, unlinks->directory, size, &indexes[done],
				       fault);
		if (ret < 0)
			return ret;
		if (!ret)
			break;
		if (unlink_file(writer, tree, ino, unlinks->directory, &key, fault) < 0)
			return fault->code;
		name += size;
		left -= size;
	}
	return (int64_t)done;
}
