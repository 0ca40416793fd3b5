// SPDX-License-Identifier: GPL-2.0-only
/*
 * Items in bulk: the columns of many leaves, payloads gathered into arrays, names and references
 * unpacked from payloads of variable length, checksums of many sectors.
 *
 * What comes in are positions of payloads as bm_scan() and bm_scan_leaves() gave them, so they lie
 * in verified leaves. What a payload says of itself (lengths of names, types of references) is not
 * trusted: an item that does not hold what it announces is marked in `bad` with a code, gives no
 * rows, and the others go on.
 */
#include "image/internal.h"

#include <stdlib.h>
#include <string.h>

int bm_csum_sectors(int csum_type, const uint8_t *data, uint32_t sectorsize, size_t count,
		    uint8_t *sums)
{
	uint8_t digest[BTRFS_CSUM_SIZE];
	int size = 0;

	for (size_t i = 0; i < count; i++) {
		size = bm_csum(csum_type, data + i * sectorsize, sectorsize, digest);
		memcpy(sums + i * (size_t)size, digest, (size_t)size);
	}
	return size;
}

int bm_gather(const struct bm_image *image, const uint64_t *position, const uint32_t *size,
	      size_t count, uint32_t width, uint8_t *rows)
{
	for (size_t i = 0; i < count; i++) {
		uint32_t n = size[i] < width ? size[i] : width;

		if (position[i] > image->size || n > image->size - position[i])
			return BM_PAST_END;
		memcpy(rows + i * width, image->blocks + position[i], n);
		memset(rows + i * width + n, 0, width - n);
	}
	return BM_OK;
}

int64_t bm_verify_blocks(struct bm_image *image, const struct bm_wanted_block *blocks, size_t count,
			 int copy, struct bm_fault *faults)
{
	int64_t bad = 0;

	for (size_t i = 0; i < count; i++) {
		struct bm_expect expect = {.tree = blocks[i].tree,
					   .generation = blocks[i].generation,
					   .level = blocks[i].level};

		faults[i] = (struct bm_fault){0};
		if (bm_image_verify_copy(image, blocks[i].logical, copy, &expect, &faults[i]) < 0)
			bad++;
	}
	return bad;
}

void bm_good_copies(const struct bm_image *image, const struct bm_wanted_block *blocks,
		    size_t count, int copy, uint8_t *good)
{
	uint8_t *memory = malloc(image->nodesize);

	for (size_t i = 0; i < count; i++) {
		struct bm_expect expect = {.level = blocks[i].level,
					   .generation = blocks[i].generation};

		good[i] =
		    memory && bm_image_is_good(image, blocks[i].logical, copy, &expect, memory);
	}
	free(memory);
}

int64_t bm_scan_leaves(struct bm_image *image, const uint64_t *leaves, size_t count,
		       const struct bm_columns *columns, size_t capacity, struct bm_fault *fault)
{
	static const struct bm_expect leaf_expect = {.level = 0};
	size_t row = 0;

	for (size_t i = 0; i < count; i++) {
		const uint8_t *leaf = bm_image_block(image, leaves[i], &leaf_expect, fault);
		uint32_t nritems;

		if (!leaf || bm_poll(fault) < 0)
			return fault->code;
		nritems = block_header(leaf)->nritems;
		COUNT(image, leaves_visited);
		COUNT_N(image, items_visited, nritems);
		for (uint32_t slot = 0; slot < nritems; slot++, row++) {
			const struct btrfs_item *item = leaf_item(leaf, slot);

			if (row >= capacity)
				continue;
			columns->objectid[row] = item->key.objectid;
			columns->type[row] = item->key.type;
			columns->offset[row] = item->key.offset;
			columns->block[row] = leaves[i];
			columns->slot[row] = (uint16_t)slot;
			columns->position[row] =
			    (uint64_t)(leaf - image->blocks) + BTRFS_HEADER_SIZE + item->offset;
			columns->size[row] = item->size;
		}
	}
	return (int64_t)row;
}

int64_t bm_unpack_name(const uint8_t *at, size_t size, const struct bm_key *key,
		       struct bm_entry *entry)
{
	size_t head, tail = 0;

	memset(entry, 0, sizeof(*entry));
	switch (key->type) {
	case BTRFS_INODE_REF_KEY: {
		struct btrfs_inode_ref ref;

		head = sizeof(ref);
		if (size < head)
			return BM_BAD_ITEM_SIZE;
		memcpy(&ref, at, head);
		entry->parent = key->offset;
		entry->child = key->objectid;
		entry->index = ref.index;
		entry->name_len = ref.name_len;
		break;
	}
	case BTRFS_INODE_EXTREF_KEY: {
		struct btrfs_inode_extref ref;

		head = sizeof(ref);
		if (size < head)
			return BM_BAD_ITEM_SIZE;
		memcpy(&ref, at, head);
		entry->parent = ref.parent_objectid;
		entry->child = key->objectid;
		entry->index = ref.index;
		entry->name_len = ref.name_len;
		break;
	}
	default: {
		struct btrfs_dir_item item;

		head = sizeof(item);
		if (size < head)
			return BM_BAD_ITEM_SIZE;
		memcpy(&item, at, head);
		entry->parent = key->objectid;
		entry->child = item.location.objectid;
		entry->location_type = item.location.type;
		entry->location_offset = item.location.offset;
		entry->index = key->type == BTRFS_DIR_INDEX_KEY ? key->offset : 0;
		entry->type = item.type;
		entry->name_len = item.name_len;
		entry->data_len = item.data_len;
		tail = item.data_len;
	}
	}
	if (size - head < entry->name_len + tail)
		return BM_BAD_ITEM_SIZE;
	entry->position = head;
	return (int64_t)(head + entry->name_len + tail);
}

static void hash_name(const uint8_t *name, uint8_t type, struct bm_entry *entry)
{
	uint32_t seed = type == BTRFS_INODE_EXTREF_KEY ? (uint32_t)entry->parent : 0xfffffffe;

	entry->name_hash = bm_crc32c(seed, name, entry->name_len);
	entry->name_xxh64 = bm_xxh64(name, entry->name_len);
}

/* Key and payload of a row; NULL: it does not lie in the image. */
static const uint8_t *item_of(const struct bm_image *image, const struct bm_columns *columns,
			      size_t row, struct bm_key *key)
{
	uint64_t position = columns->position[row];

	*key = (struct bm_key){.objectid = columns->objectid[row],
			       .type = columns->type[row],
			       .offset = columns->offset[row]};
	if (position > image->size || columns->size[row] > image->size - position)
		return NULL;
	return image->blocks + position;
}

int64_t bm_entries(const struct bm_image *image, const struct bm_columns *columns, size_t count,
		   struct bm_entry *entries, size_t capacity, int8_t *bad)
{
	size_t total = 0;

	for (size_t i = 0; i < count; i++) {
		struct bm_key key;
		const uint8_t *item = item_of(image, columns, i, &key);
		size_t size = columns->size[i], at = 0, first = total;

		bad[i] = 0;
		if (!item)
			return BM_PAST_END;
		do {
			struct bm_entry entry;
			int64_t length = bm_unpack_name(item + at, size - at, &key, &entry);

			if (length < 0) {
				bad[i] = (int8_t)length;
				total = first;
				break;
			}
			hash_name(item + at + entry.position, key.type, &entry);
			entry.item = (uint32_t)i;
			entry.position += columns->position[i] + at;
			if (total < capacity)
				entries[total] = entry;
			total++;
			at += (size_t)length;
		} while (at < size);
	}
	return (int64_t)total;
}

/*
 * What references of one type are ordered by, in an item and by their keys: of the root-based ones
 * of data the hash of hash_extent_data_ref(), of all others the root or parent.
 */
static uint64_t ref_sequence(const struct bm_ref *ref)
{
	uint32_t high, low;

	if (ref->type != BTRFS_EXTENT_DATA_REF_KEY)
		return ref->root;
	high = bm_crc32c(0xffffffff, &ref->root, sizeof(ref->root));
	low = bm_crc32c(0xffffffff, &ref->objectid, sizeof(ref->objectid));
	low = bm_crc32c(low, &ref->offset, sizeof(ref->offset));
	return (uint64_t)high << 31 ^ low;
}

/* The inline reference at `at`; its length, or a negative code. */
static int unpack_inline_ref(const uint8_t *at, size_t size, struct bm_ref *ref)
{
	struct btrfs_extent_inline_ref head;
	struct btrfs_extent_data_ref data;
	uint32_t count;

	if (size < sizeof(head))
		return BM_BAD_ITEM_SIZE;
	memcpy(&head, at, sizeof(head));
	ref->type = head.type;
	ref->root = head.offset;
	ref->count = 1;
	switch (head.type) {
	case BTRFS_TREE_BLOCK_REF_KEY:
	case BTRFS_SHARED_BLOCK_REF_KEY:
		return sizeof(head);
	case BTRFS_EXTENT_OWNER_REF_KEY:
		ref->count = 0;
		return sizeof(head);
	case BTRFS_SHARED_DATA_REF_KEY:
		if (size < sizeof(head) + sizeof(count))
			return BM_BAD_ITEM_SIZE;
		memcpy(&count, at + sizeof(head), sizeof(count));
		ref->count = count;
		return sizeof(head) + sizeof(count);
	case BTRFS_EXTENT_DATA_REF_KEY:
		/* the structure starts right after the type */
		if (size < 1 + sizeof(data))
			return BM_BAD_ITEM_SIZE;
		memcpy(&data, at + 1, sizeof(data));
		ref->root = data.root;
		ref->objectid = data.objectid;
		ref->offset = data.offset;
		ref->count = data.count;
		return 1 + sizeof(data);
	default:
		return BM_BAD_VALUE;
	}
}

/* A reference that is an item of its own; its length, or a negative code. */
static int unpack_keyed_ref(const uint8_t *at, size_t size, const struct bm_key *key,
			    struct bm_ref *ref)
{
	struct btrfs_extent_data_ref data;
	uint32_t count = 1;

	ref->type = key->type;
	ref->root = key->offset;
	if (key->type == BTRFS_EXTENT_DATA_REF_KEY) {
		if (size < sizeof(data))
			return BM_BAD_ITEM_SIZE;
		memcpy(&data, at, sizeof(data));
		ref->root = data.root;
		ref->objectid = data.objectid;
		ref->offset = data.offset;
		ref->count = data.count;
		return (int)size;
	}
	if (key->type == BTRFS_SHARED_DATA_REF_KEY) {
		if (size < sizeof(count))
			return BM_BAD_ITEM_SIZE;
		memcpy(&count, at, sizeof(count));
	}
	ref->count = count;
	return (int)size;
}

/* Bytes before the inline references of an extent item, or a negative code. */
static int64_t extent_head(const uint8_t *at, size_t size, const struct bm_key *key)
{
	struct btrfs_extent_item item;
	size_t head = sizeof(item);

	if (size < head)
		return BM_BAD_ITEM_SIZE;
	memcpy(&item, at, head);
	if (key->type == BTRFS_EXTENT_ITEM_KEY && item.flags & BTRFS_EXTENT_FLAG_TREE_BLOCK)
		head += sizeof(struct btrfs_tree_block_info);
	return size < head ? BM_BAD_ITEM_SIZE : (int64_t)head;
}

int bm_inline_refs_ascend(const uint8_t *item, size_t size, const struct bm_key *key)
{
	int64_t at = extent_head(item, size, key);
	struct bm_ref before = {0};

	while (at >= 0 && (size_t)at < size) {
		struct bm_ref ref = {.bytenr = key->objectid};
		int length = unpack_inline_ref(item + at, size - (size_t)at, &ref);

		if (length < 0)
			return 0;
		ref.sequence = ref_sequence(&ref);
		if (before.type > ref.type ||
		    (before.type == ref.type && before.sequence < ref.sequence))
			return 0;
		before = ref;
		at += length;
	}
	return at >= 0;
}

int64_t bm_extent_refs(const struct bm_image *image, const struct bm_columns *columns, size_t count,
		       struct bm_ref *refs, size_t capacity, int8_t *bad)
{
	size_t total = 0;

	for (size_t i = 0; i < count; i++) {
		struct bm_key key;
		const uint8_t *item = item_of(image, columns, i, &key);
		int keyed =
		    key.type != BTRFS_EXTENT_ITEM_KEY && key.type != BTRFS_METADATA_ITEM_KEY;
		size_t size = columns->size[i], first = total;
		int64_t at = 0;

		bad[i] = 0;
		if (!item)
			return BM_PAST_END;
		if (!keyed)
			at = extent_head(item, size, &key);
		while (at >= 0 && ((size_t)at < size || (keyed && !at))) {
			const uint8_t *start = item + at;
			struct bm_ref ref = {.bytenr = key.objectid, .item = (uint32_t)i};
			int length = keyed ? unpack_keyed_ref(start, size, &key, &ref)
					   : unpack_inline_ref(start, size - (size_t)at, &ref);

			if (length < 0) {
				at = length;
				break;
			}
			ref.sequence = ref_sequence(&ref);
			if (total < capacity)
				refs[total] = ref;
			total++;
			at += length;
			if (keyed)
				break;
		}
		if (at < 0) {
			bad[i] = (int8_t)at;
			total = first;
		}
	}
	return (int64_t)total;
}
