// SPDX-License-Identifier: GPL-2.0-only
/*
 * Many changes of a tree in one call: what a million calls of the namespace do to the items. Each
 * is the change that its call would make, in its order, so the tree comes out the same.
 */
#include "writer/writer.h"

#include <errno.h>
#include <string.h>

static int is_dir_item(uint8_t type)
{
	return type == BTRFS_DIR_ITEM_KEY || type == BTRFS_XATTR_ITEM_KEY;
}

/*
 * The size of the entry at `at` of an item and where its name lies; 0: no entry fits there. Items of
 * other types than DIR_ITEM, XATTR_ITEM and INODE_REF have no entries.
 */
static uint32_t entry_at(const struct bm_path *path, uint32_t at, const uint8_t **name,
			 uint32_t *name_size)
{
	const struct btrfs_item *item = leaf_item(path->node[0], path->slot[0]);
	const uint8_t *data = item_data(path->node[0], path->slot[0]) + at;
	uint32_t left = item->size - at, head, size;

	if (is_dir_item(item->key.type)) {
		const struct btrfs_dir_item *entry = (const void *)data;

		head = sizeof(*entry);
		if (left < head)
			return 0;
		*name_size = entry->name_len;
		size = head + entry->name_len + entry->data_len;
	} else if (item->key.type == BTRFS_INODE_REF_KEY) {
		const struct btrfs_inode_ref *entry = (const void *)data;

		head = sizeof(*entry);
		if (left < head)
			return 0;
		*name_size = entry->name_len;
		size = head + entry->name_len;
	} else {
		return 0;
	}
	*name = data + head;
	return size <= left ? size : 0;
}

/* The entry with a name: 1, 0 when there is none. */
static int find_entry(const struct bm_path *path, const uint8_t *name, uint32_t size,
		      uint32_t *start, uint32_t *length, struct bm_fault *fault)
{
	uint32_t whole = leaf_item(path->node[0], path->slot[0])->size;

	for (*start = 0; *start < whole; *start += *length) {
		const uint8_t *other;
		uint32_t other_size;

		*length = entry_at(path, *start, &other, &other_size);
		if (!*length)
			return bm_fail(fault, (struct bm_fault){
						  .code = BM_BAD_ITEM_SIZE,
						  .block = block_header(path->node[0])->bytenr,
						  .slot = path->slot[0],
						  .found = whole,
					      });
		if (other_size == size && !memcmp(other, name, size))
			return 1;
	}
	return 0;
}

/* Delete an entry: btrfs_delete_one_dir_name(), btrfs_del_inode_ref(). */
static int delete_entry(struct bm_writer *writer, struct bm_writer_tree *tree,
			const struct bm_key *key, const uint8_t *name, uint32_t size,
			struct bm_fault *fault)
{
	struct bm_path path = {0};
	uint32_t start, length, whole;
	uint8_t *data;
	int ret = bm_writer_search_slot(writer, tree, key, -1, BM_SEARCH_INSERT, &path, fault);

	if (ret)
		return ret < 0 ? ret : bm_writer_errno(fault, tree, ENOENT);
	ret = find_entry(&path, name, size, &start, &length, fault);
	if (ret <= 0)
		return ret < 0 ? ret : bm_writer_errno(fault, tree, ENOENT);
	whole = leaf_item(path.node[0], path.slot[0])->size;
	if (length == whole)
		return bm_del_items(writer, tree, &path, path.slot[0], 1, fault);
	data = bm_writer_writable(writer, item_data(path.node[0], path.slot[0]));
	memmove(data + start, data + start + length, whole - start - length);
	bm_truncate_item(writer, &path, whole - length, 0);
	BM_ASSERT(bm_path_is_sound(writer, tree, &path));
	return BM_OK;
}

/* The name in the payload of a new entry; NULL: it is none. */
static const uint8_t *name_of(uint8_t type, const uint8_t *data, uint32_t *size)
{
	uint32_t head =
	    is_dir_item(type) ? sizeof(struct btrfs_dir_item) : sizeof(struct btrfs_inode_ref);

	if (!is_dir_item(type) && type != BTRFS_INODE_REF_KEY)
		return NULL;
	if (is_dir_item(type) && *size > head) {
		const struct btrfs_dir_item *entry = (const void *)data;

		*size = entry->name_len <= *size - head ? entry->name_len : 0;
	} else {
		*size -= *size < head ? *size : head;
	}
	return *size ? data + head : NULL;
}

/* An entry goes to the end of the item that `path` stands at, unless the item has its name. */
static int append_entry(struct bm_writer *writer, struct bm_writer_tree *tree,
			const struct bm_path *path, const struct bm_key *key, const uint8_t *data,
			uint32_t size, struct bm_fault *fault)
{
	uint32_t start, length, name_size = size;
	const uint8_t *name = name_of(key->type, data, &name_size);
	int ret;

	if (!name)
		return bm_writer_errno(fault, tree, EINVAL);
	ret = find_entry(path, name, name_size, &start, &length, fault);
	if (ret)
		return ret < 0 ? ret : bm_writer_errno(fault, tree, EEXIST);
	return bm_writer_extend(writer, tree->id, key, data, size, fault);
}

int bm_writer_insert_entry_near(struct bm_writer *writer, struct bm_writer_tree *tree,
				struct bm_fingers *fingers, const struct bm_key *key,
				const uint8_t *data, uint32_t size, struct bm_fault *fault)
{
	struct bm_path path = {0};
	int ret = bm_writer_insert_near(writer, tree, fingers, key, &size, 1, data, fault);

	if (ret != BM_ERRNO || fault->found != EEXIST)
		return ret;
	ret = bm_writer_find(writer, tree, key, &path, fault);
	if (ret)
		return ret < 0 ? ret : bm_writer_errno(fault, tree, ENOENT);
	return append_entry(writer, tree, &path, key, data, size, fault);
}

int bm_writer_insert_entry(struct bm_writer *writer, uint64_t id, const struct bm_key *key,
			   const uint8_t *data, uint32_t size, struct bm_fault *fault)
{
	struct bm_writer_tree *tree = bm_writer_tree_of(writer, id, fault);
	struct bm_path path = {0};
	int ret;

	if (!tree)
		return fault->code;
	ret = bm_writer_find(writer, tree, key, &path, fault);
	if (ret < 0)
		return ret;
	return ret ? bm_writer_insert(writer, id, key, &size, 1, data, fault)
		   : append_entry(writer, tree, &path, key, data, size, fault);
}

int bm_writer_delete_entry(struct bm_writer *writer, uint64_t id, const struct bm_key *key,
			   const uint8_t *name, uint32_t size, uint64_t *index,
			   struct bm_fault *fault)
{
	struct bm_writer_tree *tree = bm_writer_tree_of(writer, id, fault);
	struct bm_path path = {0};
	uint32_t start, length;
	int ret;

	*index = 0;
	if (!tree)
		return fault->code;
	ret = bm_writer_find(writer, tree, key, &path, fault);
	if (ret)
		return ret;
	ret = find_entry(&path, name, size, &start, &length, fault);
	if (ret <= 0)
		return ret < 0 ? ret : 1;
	if (key->type == BTRFS_INODE_REF_KEY)
		*index = ((const struct btrfs_inode_ref *)(item_data(path.node[0], path.slot[0]) +
							   start))
			     ->index;
	return delete_entry(writer, tree, key, name, size, fault);
}

/* How many of the items that follow each other fit into the leaf of the one at `found`. */
static size_t fitting(const struct bm_writer *writer, const struct bm_path *found,
		      const struct bm_key *keys, const uint32_t *sizes, size_t count)
{
	int64_t room = bm_leaf_free(writer, found->node[0]);
	size_t next = 0;

	for (; next < count && keys[next].offset == keys[next - 1].offset + 1; next++) {
		room -= (int64_t)sizes[next] + BTRFS_ITEM_SIZE;
		if (room < 0)
			break;
	}
	return next;
}

/* btrfs_insert_delayed_items() before 5.15: an item, and what its leaf has room for behind it. */
static int insert_filling(struct bm_writer *writer, uint64_t tree_id, const struct bm_key *keys,
			  const uint32_t *sizes, size_t count, const uint8_t *data,
			  struct bm_fault *fault)
{
	struct bm_writer_tree *tree = bm_writer_tree_of(writer, tree_id, fault);

	if (!tree)
		return fault->code;
	for (size_t first = 0; first < count;) {
		struct bm_path path = {0};
		size_t more;

		if (bm_writer_insert(writer, tree_id, keys + first, sizes + first, 1, data, fault) <
			0 ||
		    bm_writer_find(writer, tree, keys + first, &path, fault) < 0)
			return fault->code;
		data += sizes[first++];
		more = fitting(writer, &path, keys + first, sizes + first, count - first);
		if (more && bm_writer_insert(writer, tree_id, keys + first, sizes + first, more,
					     data, fault) < 0)
			return fault->code;
		while (more--)
			data += sizes[first++];
	}
	return BM_OK;
}

int bm_writer_insert_batches(struct bm_writer *writer, uint64_t tree, const struct bm_key *keys,
			     const uint32_t *sizes, size_t count, const uint8_t *data,
			     struct bm_fault *fault)
{
	if (!(writer->behaviour >> BM_TOGGLE_BATCH_DELAYED_ITEMS & 1))
		return insert_filling(writer, tree, keys, sizes, count, data, fault);
	for (size_t first = 0, next = 0; first < count; first = next) {
		uint64_t room = writer->leaf_size, total = 0;

		for (; next < count; next++) {
			uint64_t needed = (uint64_t)sizes[next] + BTRFS_ITEM_SIZE;

			if (next > first && needed > room)
				break;
			room -= needed < room ? needed : room;
			total += sizes[next];
		}
		if (bm_writer_insert(writer, tree, keys + first, sizes + first, next - first, data,
				     fault) < 0)
			return fault->code;
		data += total;
	}
	return BM_OK;
}

/* How many items from the path on have these keys, one after the other. */
static uint32_t following(const struct bm_path *path, const struct bm_key *keys, size_t count)
{
	const struct btrfs_item *items = leaf_item(path->node[0], path->slot[0]);
	size_t left = block_header(path->node[0])->nritems - path->slot[0];
	uint32_t same = 0;

	while (same < left && same < count && !compare_disk_key(&items[same].key, &keys[same]))
		same++;
	return same;
}

int64_t bm_writer_delete_batches(struct bm_writer *writer, uint64_t id, const struct bm_key *keys,
				 size_t count, size_t most, struct bm_fault *fault)
{
	struct bm_writer_tree *tree = bm_writer_tree_of(writer, id, fault);
	size_t done = 0;

	if (!tree)
		return fault->code;
	for (; done < count && most; most--) {
		struct bm_path path = {0};
		uint32_t same = 1;
		int ret = bm_writer_search_slot(writer, tree, &keys[done], -1, BM_SEARCH_INSERT,
						&path, fault);

		if (!ret) {
			same = following(&path, keys + done, count - done);
			ret = bm_del_items(writer, tree, &path, path.slot[0], same, fault);
		}
		if (ret < 0)
			return fault->code;
		done += same;
	}
	return (int64_t)done;
}

enum { BATCH = 16 };

/* An insertion with those that lie beside it; returns how many. */
static int64_t insert_batch(struct bm_writer *writer, struct bm_writer_tree *tree,
			    struct bm_fingers *fingers, const struct bm_writer_change *changes,
			    size_t left, const uint8_t *data, uint64_t size, struct bm_fault *fault)
{
	struct bm_key keys[BATCH];
	uint32_t sizes[BATCH];
	uint64_t total = 0;
	size_t count = 0;

	for (;;) {
		total += changes[count].size;
		if (total > size || changes[count].kind != BM_WRITER_INSERT)
			return bm_writer_errno(fault, tree, EINVAL);
		keys[count] = changes[count].key;
		sizes[count] = changes[count].size;
		if (!changes[count++].more)
			break;
		if (count == BATCH || count == left)
			return bm_writer_errno(fault, tree, EINVAL);
	}
	if (bm_writer_insert_near(writer, tree, fingers, keys, sizes, count, data, fault) < 0)
		return fault->code;
	return (int64_t)count;
}

/* One change, or several that belong together; returns how many. */
static int64_t apply_next(struct bm_writer *writer, struct bm_writer_tree *tree,
			  struct bm_fingers *fingers, const struct bm_writer_change *change,
			  size_t left, const uint8_t *data, uint64_t size, struct bm_fault *fault)
{
	int64_t ret;

	if (change->size > size)
		return bm_writer_errno(fault, tree, EINVAL);
	switch (change->kind) {
	case BM_WRITER_INSERT:
		return insert_batch(writer, tree, fingers, change, left, data, size, fault);
	case BM_WRITER_INSERT_EXTENT:
		ret = bm_writer_insert_extent(writer, tree->id, &change->key, NULL, data,
					      change->size, fault);
		break;
	case BM_WRITER_INSERT_ENTRY:
		ret = bm_writer_insert_entry_near(writer, tree, fingers, &change->key, data,
						  change->size, fault);
		break;
	case BM_WRITER_DELETE:
		ret = bm_writer_delete(writer, tree->id, &change->key, &change->key, 0, fault);
		if (!ret)
			ret = bm_writer_errno(fault, tree, ENOENT);
		break;
	case BM_WRITER_DELETE_ENTRY:
		ret = delete_entry(writer, tree, &change->key, data, change->size, fault);
		break;
	case BM_WRITER_UPDATE:
		ret = bm_writer_update_near(writer, tree, fingers, &change->key, data, change->size,
					    fault);
		break;
	default:
		ret = bm_writer_errno(fault, tree, EINVAL);
	}
	return ret < 0 ? ret : 1;
}

/* Changes one after the other; *data and *size go on behind the payloads of those that were done. */
static size_t apply_changes(struct bm_writer *writer, struct bm_writer_tree *tree,
			    struct bm_fingers *fingers, const struct bm_writer_change *changes,
			    size_t count, const uint8_t **data, uint64_t *size,
			    struct bm_fault *fault)
{
	size_t done = 0;

	while (done < count) {
		int64_t ret = apply_next(writer, tree, fingers, &changes[done], count - done, *data,
					 *size, fault);

		if (ret < 0)
			break;
		for (size_t end = done + (size_t)ret; done < end; done++) {
			*data += changes[done].size;
			*size -= changes[done].size;
		}
	}
	return done;
}

int64_t bm_writer_apply(struct bm_writer *writer, uint64_t id,
			const struct bm_writer_change *changes, size_t count, const uint8_t *data,
			uint64_t size, struct bm_fault *fault)
{
	struct bm_writer_tree *tree = bm_writer_tree_of(writer, id, fault);
	struct bm_fingers fingers = {0};

	if (!tree)
		return fault->code;
	return (int64_t)apply_changes(writer, tree, &fingers, changes, count, &data, &size, fault);
}

int64_t bm_writer_apply_calls(struct bm_writer *writer, uint64_t id,
			      const struct bm_writer_change *changes, size_t each, size_t calls,
			      size_t sure, const uint8_t *data, uint64_t size,
			      struct bm_fault *fault)
{
	struct bm_writer_tree *tree = bm_writer_tree_of(writer, id, fault);
	const uint64_t noted = bm_refs_noted(writer);
	struct bm_fingers fingers = {0};
	size_t done = 0;

	if (!tree)
		return fault->code;
	for (; done < calls && (done < sure || bm_refs_noted(writer) == noted); done++) {
		if (apply_changes(writer, tree, &fingers, &changes[done * each], each, &data, &size,
				  fault) < each)
			return fault->code;
	}
	return (int64_t)done;
}
