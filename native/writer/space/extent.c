// SPDX-License-Identifier: GPL-2.0-only
/*
 * The extent tree: an item for each extent, its references inside the item while they fit.
 *
 *   (bytenr EXTENT_ITEM length)    | refs | gen | flags | [first key | level |] inline refs ...
 *   (bytenr METADATA_ITEM level)   | refs | gen | flags | inline refs ...
 *   (bytenr EXTENT_DATA_REF hash)  and so on: references that did not fit
 *
 * Inline references stand by ascending type, and within a type by descending hash, root or parent.
 */
#include "writer/space/refs.h"

#include <errno.h>
#include <string.h>

/* A place in the extent tree that holds a reference. */
struct place {
	struct bm_path path;
	uint32_t at; /* byte of the payload where the inline reference is or would be */
};

static int fail_extent(const struct bm_path *path, int code, uint64_t found, uint64_t wanted,
		       struct bm_fault *fault)
{
	struct bm_fault what = {
	    .code = code, .tree = BTRFS_EXTENT_TREE_OBJECTID, .found = found, .wanted = wanted};

	if (path && path->node[0]) {
		what.block = block_header(path->node[0])->bytenr;
		what.slot = path->slot[0];
	}
	return bm_fail(fault, what);
}

static struct bm_writer_tree *extent_tree(const struct bm_writer *writer, struct bm_fault *fault)
{
	return bm_writer_tree_of(writer, BTRFS_EXTENT_TREE_OBJECTID, fault);
}

static int is_data(const struct bm_extent_ref *ref)
{
	return ref->level < 0;
}

static struct bm_key key_here(const struct bm_path *path)
{
	return to_key(&leaf_item(path->node[0], path->slot[0])->key);
}

static uint32_t size_here(const struct bm_path *path)
{
	return leaf_item(path->node[0], path->slot[0])->size;
}

static uint8_t *payload_here(const struct bm_writer *writer, const struct bm_path *path)
{
	return bm_writer_writable(writer, item_data(path->node[0], path->slot[0]));
}

/* hash_extent_data_ref() */
static uint64_t hash_data_ref(uint64_t root, uint64_t ino, uint64_t offset)
{
	uint64_t high = bm_crc32c(UINT32_MAX, &root, sizeof(root));
	uint32_t low = bm_crc32c(UINT32_MAX, &ino, sizeof(ino));

	return high << 31 ^ bm_crc32c(low, &offset, sizeof(offset));
}

static int same_data_ref(const struct btrfs_extent_data_ref *item, const struct bm_extent_ref *ref)
{
	return item->root == ref->value && item->objectid == ref->ino &&
	       item->offset == ref->offset;
}

/* btrfs_extent_inline_ref_size(); 0: no such type. */
static uint32_t inline_size(uint8_t type)
{
	switch (type) {
	case BTRFS_TREE_BLOCK_REF_KEY:
	case BTRFS_SHARED_BLOCK_REF_KEY:
	case BTRFS_EXTENT_OWNER_REF_KEY:
		return sizeof(struct btrfs_extent_inline_ref);
	case BTRFS_SHARED_DATA_REF_KEY:
		return sizeof(struct btrfs_extent_inline_ref) +
		       sizeof(struct btrfs_shared_data_ref);
	case BTRFS_EXTENT_DATA_REF_KEY:
		return 1 + sizeof(struct btrfs_extent_data_ref);
	default:
		return 0;
	}
}

/* BTRFS_MAX_EXTENT_ITEM_SIZE() */
static uint32_t max_item_size(const struct bm_writer *writer)
{
	return (writer->leaf_size >> 4) - BTRFS_ITEM_SIZE;
}

/* ------------------------------------------------------------------------------- extent items -- */

/*
 * The key of an extent's item. Tree blocks have a METADATA_ITEM, or an EXTENT_ITEM where the
 * filesystem lacks the feature, or lacked it when the block was written.
 */
static int extent_key(struct bm_writer *writer, const struct bm_writer_tree *tree,
		      const struct bm_extent_ref *ref, struct bm_key *key, struct bm_fault *fault)
{
	struct bm_path path = {0};
	int ret;

	*key = (struct bm_key){
	    .objectid = ref->bytenr, .type = BTRFS_EXTENT_ITEM_KEY, .offset = ref->num_bytes};
	if (is_data(ref) || !(writer->features & BM_WRITER_SKINNY_METADATA))
		return BM_OK;
	key->type = BTRFS_METADATA_ITEM_KEY;
	key->offset = (uint64_t)ref->level;
	ret = bm_writer_find(writer, tree, key, &path, fault);
	if (ret > 0) {
		key->type = BTRFS_EXTENT_ITEM_KEY;
		key->offset = ref->num_bytes;
	}
	return ret < 0 ? ret : BM_OK;
}

/* Where inline references begin in the item of the path; negative when it is too short. */
static int inline_start(const struct bm_path *path, struct bm_fault *fault)
{
	const struct btrfs_extent_item *item =
	    (const void *)item_data(path->node[0], path->slot[0]);
	uint32_t start = sizeof(*item), size = size_here(path);

	if (size >= start && item->flags & BTRFS_EXTENT_FLAG_TREE_BLOCK &&
	    key_here(path).type == BTRFS_EXTENT_ITEM_KEY)
		start += sizeof(struct btrfs_tree_block_info);
	if (size < start)
		return fail_extent(path, BM_BAD_ITEM_SIZE, size, start, fault);
	return (int)start;
}

/* A reference in another place of the order: below 0 before `ref`, above behind it, 0: it. */
static int compare_inline(const uint8_t *at, const struct bm_extent_ref *ref)
{
	const struct btrfs_extent_inline_ref *inline_ref = (const void *)at;
	uint64_t value = inline_ref->offset, wanted = ref->value;

	if (inline_ref->type != ref->type)
		return inline_ref->type < ref->type ? -1 : 1;
	if (ref->type == BTRFS_EXTENT_DATA_REF_KEY) {
		const struct btrfs_extent_data_ref *item = (const void *)(at + 1);

		if (same_data_ref(item, ref))
			return 0;
		value = hash_data_ref(item->root, item->objectid, item->offset);
		wanted = hash_data_ref(ref->value, ref->ino, ref->offset);
		/* a collision: the search goes on behind it */
		return value < wanted ? 1 : -1;
	}
	return value == wanted ? 0 : value < wanted ? 1 : -1;
}

/* 1: the inline reference is at place->at; 0: it is not, and that is where it would be. */
static int find_inline(struct place *place, const struct bm_extent_ref *ref, struct bm_fault *fault)
{
	const uint8_t *data = item_data(place->path.node[0], place->path.slot[0]);
	uint32_t end = size_here(&place->path);
	int start = inline_start(&place->path, fault);

	if (start < 0)
		return start;
	place->at = (uint32_t)start;
	while (place->at < end) {
		uint32_t size = inline_size(data[place->at]);
		int order;

		if (!size)
			return fail_extent(&place->path, BM_BAD_VALUE, data[place->at], 0, fault);
		if (end - place->at < size)
			return fail_extent(&place->path, BM_BAD_ITEM_SIZE, end, place->at + size,
					   fault);
		order = compare_inline(data + place->at, ref);
		if (order >= 0)
			return !order;
		place->at += size;
	}
	return 0;
}

static int fail_missing(const struct bm_path *path, const struct bm_extent_ref *ref,
			struct bm_fault *fault)
{
	return fail_extent(path, BM_NOT_FOUND, ref->bytenr, ref->type, fault);
}

/* Whether the item behind the path belongs to the same extent: a keyed reference. */
static int has_keyed_refs(const struct bm_path *path, uint64_t bytenr)
{
	struct bm_key key;

	if (path->slot[0] + 1 < block_header(path->node[0])->nritems)
		key = to_key(&leaf_item(path->node[0], path->slot[0] + 1)->key);
	else if (!bm_path_upper_bound(path, &key))
		return 0;
	return key.objectid == bytenr && key.type < BTRFS_BLOCK_GROUP_ITEM_KEY;
}

/* ----------------------------------------------------------------------------- inline, changed -- */

/* The count of a reference to data, inside a payload; NULL: a tree block's, which counts one. */
static uint8_t *count_of(uint8_t *payload, uint8_t type, int is_inline)
{
	uint8_t *body = payload + (is_inline ? 1 : 0);

	if (type == BTRFS_EXTENT_DATA_REF_KEY)
		return body + offsetof(struct btrfs_extent_data_ref, count);
	if (type == BTRFS_SHARED_DATA_REF_KEY)
		return payload + (is_inline ? sizeof(struct btrfs_extent_inline_ref) : 0);
	return NULL;
}

static uint32_t get_count(const uint8_t *at)
{
	uint32_t count;

	memcpy(&count, at, sizeof(count));
	return count;
}

static void put_count(uint8_t *at, uint32_t count)
{
	memcpy(at, &count, sizeof(count));
}

static void fill_inline(uint8_t *at, const struct bm_extent_ref *ref)
{
	struct btrfs_extent_inline_ref *inline_ref = (void *)at;

	inline_ref->type = ref->type;
	if (ref->type == BTRFS_EXTENT_DATA_REF_KEY)
		*(struct btrfs_extent_data_ref *)(at + 1) =
		    (struct btrfs_extent_data_ref){.root = ref->value,
						   .objectid = ref->ino,
						   .offset = ref->offset,
						   .count = ref->count};
	else
		inline_ref->offset = ref->value;
	if (ref->type == BTRFS_SHARED_DATA_REF_KEY)
		put_count(at + sizeof(*inline_ref), ref->count);
}

/* setup_inline_extent_backref(): the leaf has room. */
static void insert_inline(struct bm_writer *writer, struct place *place,
			  const struct bm_extent_ref *ref)
{
	uint32_t size = inline_size(ref->type), end = size_here(&place->path);
	uint8_t *data;

	bm_extend_item(writer, &place->path, size);
	data = payload_here(writer, &place->path);
	BM_ASSERT(place->at <= end && size_here(&place->path) == end + size);
	memmove(data + place->at + size, data + place->at, end - place->at);
	fill_inline(data + place->at, ref);
}

/* update_inline_extent_backref() for references that go. */
static int drop_inline(struct bm_writer *writer, struct place *place,
		       const struct bm_extent_ref *ref, struct bm_fault *fault)
{
	uint8_t *data = payload_here(writer, &place->path);
	uint8_t *counter = count_of(data + place->at, ref->type, 1);
	uint32_t size = inline_size(ref->type), end = size_here(&place->path);
	uint32_t count = counter ? get_count(counter) : 1;

	BM_ASSERT(bm_writer_is_new(writer, place->path.node[0]) && place->at + size <= end);
	if (count < ref->count)
		return fail_extent(&place->path, BM_BAD_VALUE, count, ref->count, fault);
	if (count > ref->count) {
		put_count(counter, count - ref->count);
		return BM_OK;
	}
	memmove(data + place->at, data + place->at + size, end - place->at - size);
	bm_truncate_item(writer, &place->path, end - size, 0);
	return BM_OK;
}

/* -------------------------------------------------------------------------- keyed references -- */

static struct bm_key keyed_key(const struct bm_extent_ref *ref)
{
	struct bm_key key = {.objectid = ref->bytenr, .type = ref->type, .offset = ref->value};

	if (ref->type == BTRFS_EXTENT_DATA_REF_KEY)
		key.offset = hash_data_ref(ref->value, ref->ino, ref->offset);
	return key;
}

static uint32_t keyed_size(uint8_t type)
{
	if (type == BTRFS_EXTENT_DATA_REF_KEY)
		return sizeof(struct btrfs_extent_data_ref);
	return type == BTRFS_SHARED_DATA_REF_KEY ? sizeof(struct btrfs_shared_data_ref) : 0;
}

static int check_keyed(const struct bm_path *path, const struct bm_extent_ref *ref,
		       struct bm_fault *fault)
{
	uint32_t size = size_here(path), wanted = keyed_size(ref->type);

	return size == wanted ? BM_OK : fail_extent(path, BM_BAD_ITEM_SIZE, size, wanted, fault);
}

/* insert_extent_data_ref(), insert_tree_block_ref() */
static int insert_keyed(struct bm_writer *writer, struct bm_writer_tree *tree,
			const struct bm_extent_ref *ref, struct bm_fault *fault)
{
	struct bm_key key = keyed_key(ref);
	uint32_t size = keyed_size(ref->type);
	uint8_t inline_form[1 + sizeof(struct btrfs_extent_data_ref)], *counter;

	for (;; key.offset++) {
		struct bm_path path = {0};
		int ret = bm_writer_search_slot(writer, tree, &key, (int)(size + BTRFS_ITEM_SIZE),
						BM_SEARCH_INSERT, &path, fault);

		if (ret < 0)
			return ret;
		if (ret) {
			if (bm_setup_items_for_insert(writer, &path, &key, &size, 1, fault) < 0)
				return fault->code;
			BM_ASSERT(bm_path_is_sound(writer, tree, &path));
			fill_inline(inline_form, ref);
			if (size)
				memcpy(payload_here(writer, &path),
				       inline_form + inline_size(ref->type) - size, size);
			return BM_OK;
		}
		if (check_keyed(&path, ref, fault) < 0)
			return fault->code;
		if (ref->type == BTRFS_EXTENT_DATA_REF_KEY &&
		    !same_data_ref((const void *)payload_here(writer, &path), ref))
			continue;
		counter = count_of(payload_here(writer, &path), ref->type, 0);
		if (!counter)
			return bm_writer_errno(fault, tree, EEXIST);
		put_count(counter, get_count(counter) + ref->count);
		return BM_OK;
	}
}

/* lookup_extent_data_ref(), lookup_tree_block_ref(): 1: at the path. */
static int find_keyed(struct bm_writer *writer, struct bm_writer_tree *tree,
		      const struct bm_extent_ref *ref, struct bm_path *path, struct bm_fault *fault)
{
	struct bm_key key = keyed_key(ref);
	int ret = bm_writer_search_slot(writer, tree, &key, -1, BM_SEARCH_INSERT, path, fault);

	if (ref->type != BTRFS_EXTENT_DATA_REF_KEY) {
		if (!ret && check_keyed(path, ref, fault) < 0)
			return fault->code;
		return ret < 0 ? ret : !ret;
	}
	while (ret >= 0) {
		if (path->slot[0] >= block_header(path->node[0])->nritems) {
			if (!bm_path_upper_bound(path, &key) || key.objectid != ref->bytenr ||
			    key.type != ref->type)
				return 0;
			ret = bm_writer_search_slot(writer, tree, &key, -1, BM_SEARCH_INSERT, path,
						    fault);
			continue;
		}
		key = key_here(path);
		if (key.objectid != ref->bytenr || key.type != ref->type)
			return 0;
		if (check_keyed(path, ref, fault) < 0)
			return fault->code;
		if (same_data_ref((const void *)item_data(path->node[0], path->slot[0]), ref))
			return 1;
		path->slot[0]++;
	}
	return ret;
}

/* remove_extent_data_ref() and its like for tree blocks. */
static int drop_keyed(struct bm_writer *writer, struct bm_writer_tree *tree, struct bm_path *path,
		      const struct bm_extent_ref *ref, struct bm_fault *fault)
{
	uint8_t *counter = count_of(payload_here(writer, path), ref->type, 0);
	uint32_t count = counter ? get_count(counter) : 1;

	BM_ASSERT(bm_path_is_sound(writer, tree, path));
	if (count < ref->count)
		return fail_extent(path, BM_BAD_VALUE, count, ref->count, fault);
	if (count == ref->count)
		return bm_del_items(writer, tree, path, path->slot[0], 1, fault);
	put_count(counter, count - ref->count);
	return BM_OK;
}

/* ------------------------------------------------------------------------------- a new extent -- */

/* alloc_reserved_extent() */
static int account_new(struct bm_writer *writer, const struct bm_extent_ref *ref,
		       struct bm_fault *fault)
{
	if (bm_free_space_remove(writer, ref->bytenr, ref->num_bytes, fault) < 0)
		return fault->code;
	return bm_space_used(writer, ref->bytenr, (int64_t)ref->num_bytes, fault);
}

int bm_extent_insert(struct bm_writer *writer, const struct bm_extent_ref *ref, uint64_t flags,
		     const struct bm_key *first, struct bm_fault *fault)
{
	struct bm_writer_tree *tree = extent_tree(writer, fault);
	int is_skinny = !is_data(ref) && writer->features & BM_WRITER_SKINNY_METADATA;
	int has_info = !is_data(ref) && !is_skinny;
	struct bm_extent_ref owner = {.type = BTRFS_EXTENT_OWNER_REF_KEY,
				      .value = ref->owning_root};
	uint32_t owner_size =
	    is_data(ref) && bm_quota_is_simple(writer) ? inline_size(owner.type) : 0;
	struct bm_key key = {
	    .objectid = ref->bytenr,
	    .type = is_skinny ? BTRFS_METADATA_ITEM_KEY : BTRFS_EXTENT_ITEM_KEY,
	    .offset = is_skinny ? (uint64_t)ref->level : ref->num_bytes,
	};
	uint32_t start = sizeof(struct btrfs_extent_item), size;
	struct bm_path path = {0};
	uint8_t *data;
	int ret;

	if (!tree)
		return fault->code;
	if (has_info)
		start += sizeof(struct btrfs_tree_block_info);
	size = start + owner_size + inline_size(ref->type);
	ret = bm_writer_search_slot(writer, tree, &key, (int)(size + BTRFS_ITEM_SIZE),
				    BM_SEARCH_INSERT, &path, fault);
	if (ret < 0)
		return ret;
	if (!ret)
		return fail_extent(&path, BM_ERRNO, EEXIST, ref->bytenr, fault);
	if (bm_setup_items_for_insert(writer, &path, &key, &size, 1, fault) < 0)
		return fault->code;
	BM_ASSERT(bm_path_is_sound(writer, tree, &path) && ref->count);
	data = payload_here(writer, &path);
	flags |= is_data(ref) ? BTRFS_EXTENT_FLAG_DATA : BTRFS_EXTENT_FLAG_TREE_BLOCK;
	*(struct btrfs_extent_item *)data = (struct btrfs_extent_item){
	    .refs = ref->count, .generation = writer->transid, .flags = flags};
	if (has_info)
		*(struct btrfs_tree_block_info *)(data + sizeof(struct btrfs_extent_item)) =
		    (struct btrfs_tree_block_info){.key = to_disk_key(first),
						   .level = (uint8_t)ref->level};
	if (owner_size)
		fill_inline(data + start, &owner);
	fill_inline(data + start + owner_size, ref);
	if (bm_quota_delta(writer, ref->owning_root, (int64_t)ref->num_bytes, writer->transid,
			   fault) < 0)
		return fault->code;
	return account_new(writer, ref, fault);
}

/* ------------------------------------------------------------------------- references come, go -- */

static int check_ref(const struct bm_extent_ref *ref, struct bm_fault *fault)
{
	if (ref->count && (is_data(ref) || ref->count == 1))
		return BM_OK;
	return fail_extent(NULL, BM_BAD_VALUE, ref->bytenr, ref->count, fault);
}

int bm_extent_add(struct bm_writer *writer, const struct bm_extent_ref *ref, uint64_t flags,
		  struct bm_fault *fault)
{
	struct bm_writer_tree *tree = extent_tree(writer, fault);
	uint32_t size = inline_size(ref->type);
	struct place place = {.at = 0};
	struct btrfs_extent_item *item;
	struct bm_key key;
	uint8_t *counter;
	int ret, fits;

	if (!tree || check_ref(ref, fault) < 0 || extent_key(writer, tree, ref, &key, fault) < 0)
		return fault->code;
	ret = bm_writer_search_slot(writer, tree, &key, (int)size, BM_SEARCH_EXTEND, &place.path,
				    fault);
	if (ret)
		return ret < 0 ? ret : fail_missing(NULL, ref, fault);
	ret = find_inline(&place, ref, fault);
	if (ret < 0)
		return ret;
	BM_ASSERT(bm_path_is_sound(writer, tree, &place.path) && ref->count);
	item = (void *)payload_here(writer, &place.path);
	item->refs += ref->count;
	item->flags |= flags;
	if (ret) {
		counter = count_of((uint8_t *)item + place.at, ref->type, 1);
		if (!counter)
			return fail_extent(&place.path, BM_ERRNO, EEXIST, ref->bytenr, fault);
		put_count(counter, get_count(counter) + ref->count);
		return BM_OK;
	}
	fits = size_here(&place.path) + size < max_item_size(writer) &&
	       !has_keyed_refs(&place.path, ref->bytenr);
	if (!fits)
		return insert_keyed(writer, tree, ref, fault);
	insert_inline(writer, &place, ref);
	return BM_OK;
}

/* do_free_extent_accounting(): the extent is gone. */
static int account_gone(struct bm_writer *writer, const struct bm_extent_ref *ref,
			struct bm_fault *fault)
{
	if (is_data(ref) && bm_writer_delete_csums(writer, BTRFS_CSUM_TREE_OBJECTID, ref->bytenr,
						   ref->num_bytes, fault) < 0)
		return fault->code;
	if (bm_free_space_add(writer, ref->bytenr, ref->num_bytes, fault) < 0 ||
	    bm_space_used(writer, ref->bytenr, -(int64_t)ref->num_bytes, fault) < 0)
		return fault->code;
	return bm_space_pin(writer, ref->bytenr, ref->num_bytes, 0, fault);
}

/* Who allocated the extent of the path: of data the first inline reference says it, or nobody. */
static uint64_t owner_of(const struct bm_path *path, const struct bm_extent_ref *ref)
{
	const uint8_t *data = item_data(path->node[0], path->slot[0]);
	const struct btrfs_extent_inline_ref *first =
	    (const void *)(data + sizeof(struct btrfs_extent_item));

	if (!is_data(ref))
		return ref->owning_root;
	if (size_here(path) < sizeof(struct btrfs_extent_item) + sizeof(*first) ||
	    first->type != BTRFS_EXTENT_OWNER_REF_KEY)
		return 0;
	return first->offset;
}

/* The item of the path loses references that were inside it or just behind it. */
static int drop_last(struct bm_writer *writer, struct bm_writer_tree *tree, struct bm_path *path,
		     uint32_t count, const struct bm_extent_ref *ref, struct bm_fault *fault)
{
	const struct btrfs_extent_item *item =
	    (const void *)item_data(path->node[0], path->slot[0]);

	if (bm_quota_delta(writer, owner_of(path, ref), -(int64_t)ref->num_bytes, item->generation,
			   fault) < 0)
		return fault->code;
	if (bm_del_items(writer, tree, path, path->slot[0], count, fault) < 0)
		return fault->code;
	return account_gone(writer, ref, fault);
}

/* How many references the item of the path has left once `ref` is gone; negative: a fault. */
static int64_t refs_left(const struct bm_path *path, const struct bm_extent_ref *ref,
			 struct bm_fault *fault)
{
	const struct btrfs_extent_item *item =
	    (const void *)item_data(path->node[0], path->slot[0]);

	if (inline_start(path, fault) < 0)
		return fault->code;
	if (item->refs < ref->count || item->refs > INT64_MAX)
		return fail_extent(path, BM_BAD_VALUE, item->refs, ref->count, fault);
	return (int64_t)(item->refs - ref->count);
}

static void set_refs(struct bm_writer *writer, const struct bm_path *path, int64_t refs,
		     uint64_t flags)
{
	struct btrfs_extent_item *item = (void *)payload_here(writer, path);

	BM_ASSERT(bm_writer_is_new(writer, path->node[0]) && refs > 0);
	item->refs = (uint64_t)refs;
	item->flags |= flags;
}

/* How many items in front of a keyed reference are searched for the item of its extent. */
#define LOOK_BACK 5

/* Whether the extent's item stands before the path's in the same leaf; then the path is there. */
static int step_back(struct bm_path *path, const struct bm_key *key)
{
	uint32_t slot = path->slot[0];

	for (uint32_t step = 0; step <= LOOK_BACK && step <= slot; step++) {
		const struct btrfs_disk_key *found = &leaf_item(path->node[0], slot - step)->key;

		if (found->objectid != key->objectid)
			return 0;
		if (compare_disk_key(found, key) == 0) {
			path->slot[0] = slot - step;
			return 1;
		}
	}
	return 0;
}

/* __btrfs_free_extent() where the reference is an item of its own. */
static int drop_with_keyed(struct bm_writer *writer, struct bm_writer_tree *tree,
			   const struct bm_key *key, const struct bm_extent_ref *ref,
			   uint64_t flags, struct bm_fault *fault)
{
	struct bm_path keyed = {0}, path;
	int64_t left;
	int ret = find_keyed(writer, tree, ref, &keyed, fault);

	if (ret <= 0)
		return ret < 0 ? ret : fail_missing(NULL, ref, fault);
	path = keyed;
	if (step_back(&path, key)) {
		left = refs_left(&path, ref, fault);
		if (left < 0)
			return (int)left;
		if (!left) {
			if (keyed.slot[0] != path.slot[0] + 1)
				return fail_extent(&path, BM_BAD_VALUE, ref->count, 0, fault);
			return drop_last(writer, tree, &path, 2, ref, fault);
		}
		set_refs(writer, &path, left, flags);
		return drop_keyed(writer, tree, &keyed, ref, fault);
	}
	if (drop_keyed(writer, tree, &keyed, ref, fault) < 0)
		return fault->code;
	memset(&path, 0, sizeof(path));
	ret = bm_writer_search_slot(writer, tree, key, -1, BM_SEARCH_INSERT, &path, fault);
	if (ret)
		return ret < 0 ? ret : fail_missing(NULL, ref, fault);
	left = refs_left(&path, ref, fault);
	if (left < 0)
		return (int)left;
	if (!left)
		return drop_last(writer, tree, &path, 1, ref, fault);
	set_refs(writer, &path, left, flags);
	return BM_OK;
}

int bm_extent_drop(struct bm_writer *writer, const struct bm_extent_ref *ref, uint64_t flags,
		   struct bm_fault *fault)
{
	struct bm_writer_tree *tree = extent_tree(writer, fault);
	struct place place = {.at = 0};
	struct bm_key key;
	int64_t left;
	int ret;

	if (!tree || check_ref(ref, fault) < 0 || extent_key(writer, tree, ref, &key, fault) < 0)
		return fault->code;
	ret = bm_writer_search_slot(writer, tree, &key, -1, BM_SEARCH_INSERT, &place.path, fault);
	if (ret)
		return ret < 0 ? ret : fail_missing(NULL, ref, fault);
	ret = find_inline(&place, ref, fault);
	if (ret < 0)
		return ret;
	if (!ret)
		return drop_with_keyed(writer, tree, &key, ref, flags, fault);
	left = refs_left(&place.path, ref, fault);
	if (left < 0)
		return (int)left;
	if (!left)
		return drop_last(writer, tree, &place.path, 1, ref, fault);
	set_refs(writer, &place.path, left, flags);
	return drop_inline(writer, &place, ref, fault);
}

int bm_extent_set_flags(struct bm_writer *writer, uint64_t bytenr, int level, uint64_t flags,
			struct bm_fault *fault)
{
	struct bm_extent_ref block = {.bytenr = bytenr,
				      .num_bytes = writer->nodesize,
				      .type = BTRFS_TREE_BLOCK_REF_KEY,
				      .level = (int8_t)level};
	struct bm_writer_tree *tree = extent_tree(writer, fault);
	struct bm_path path = {0};
	struct bm_key key;
	int ret;

	if (!tree || extent_key(writer, tree, &block, &key, fault) < 0)
		return fault->code;
	ret = bm_writer_search_slot(writer, tree, &key, 0, BM_SEARCH_INSERT, &path, fault);
	if (ret)
		return ret < 0 ? ret : fail_missing(NULL, &block, fault);
	if (inline_start(&path, fault) < 0)
		return fault->code;
	BM_ASSERT(bm_path_is_sound(writer, tree, &path));
	((struct btrfs_extent_item *)payload_here(writer, &path))->flags |= flags;
	return BM_OK;
}

int bm_extent_lookup(struct bm_writer *writer, uint64_t bytenr, uint64_t *refs, uint64_t *flags,
		     struct bm_fault *fault)
{
	struct bm_key key = {
	    .objectid = bytenr, .type = BTRFS_METADATA_ITEM_KEY, .offset = UINT64_MAX};
	const struct bm_writer_tree *tree = extent_tree(writer, fault);
	const struct btrfs_extent_item *item;
	struct bm_path path = {0};

	*refs = *flags = 0;
	if (!tree || bm_writer_find(writer, tree, &key, &path, fault) < 0)
		return fault->code;
	if (!path.slot[0])
		return BM_OK;
	path.slot[0]--;
	key = key_here(&path);
	if (key.objectid != bytenr ||
	    (key.type != BTRFS_EXTENT_ITEM_KEY && key.type != BTRFS_METADATA_ITEM_KEY))
		return BM_OK;
	if (inline_start(&path, fault) < 0)
		return fault->code;
	item = (const void *)item_data(path.node[0], path.slot[0]);
	*refs = item->refs;
	*flags = item->flags;
	return BM_OK;
}
