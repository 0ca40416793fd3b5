// SPDX-License-Identifier: GPL-2.0-only
/*
 * Payloads unpacked in bulk. Each payload lies at the very end of an allocation, so that under
 * AddressSanitizer a read of one byte too many ends the test.
 */
#include "image/checksum.h"
#include "kernels.h"

#include <stdlib.h>
#include <string.h>

#include "check.h"

#define ROOM 16

static const uint8_t fsid[16];

/* One item whose payload is all that there is in the image. */
struct single {
	uint8_t *memory;
	struct bm_image *image;
	struct bm_columns columns;
	uint64_t objectid, offset, block, position;
	uint32_t size;
	uint16_t slot;
	uint8_t type;
};

static void single_init(struct single *one, uint8_t type, uint64_t offset, const void *payload,
			uint32_t size)
{
	/* an image is not smaller than a sector */
	size_t lead = 4096;

	memset(one, 0, sizeof(*one));
	one->memory = calloc(1, lead + size);
	memcpy(one->memory + lead, payload, size);
	one->image = bm_image_create(one->memory, lead + size, 4096, 4096, 0, fsid);
	one->objectid = 257;
	one->type = type;
	one->offset = offset;
	one->position = lead;
	one->size = size;
	one->columns = (struct bm_columns){
	    .objectid = &one->objectid,
	    .type = &one->type,
	    .offset = &one->offset,
	    .block = &one->block,
	    .slot = &one->slot,
	    .position = &one->position,
	    .size = &one->size,
	};
}

static void single_destroy(struct single *one)
{
	bm_image_destroy(one->image);
	free(one->memory);
}

static int64_t unpack_names(uint8_t type, const void *payload, uint32_t size,
			    struct bm_entry *entries, int8_t *bad)
{
	struct single one;
	int64_t count;

	single_init(&one, type, 256, payload, size);
	count = bm_entries(one.image, &one.columns, 1, entries, ROOM, bad);
	single_destroy(&one);
	return count;
}

static void test_names(void)
{
	static const char name[] = "name";
	struct bm_entry entries[ROOM];
	uint8_t payload[256];
	uint32_t size = 0;
	int8_t bad;

	for (uint64_t index = 7; index < 9; index++) {
		struct btrfs_inode_ref ref = {.index = index, .name_len = 4};

		memcpy(payload + size, &ref, sizeof(ref));
		memcpy(payload + size + sizeof(ref), name, 4);
		size += sizeof(ref) + 4;
	}
	CHECK(unpack_names(BTRFS_INODE_REF_KEY, payload, size, entries, &bad) == 2 && !bad);
	CHECK(entries[0].index == 7 && entries[1].index == 8);
	CHECK(entries[1].parent == 256 && entries[1].child == 257 && entries[1].name_len == 4);
	CHECK(entries[1].position == 4096 + size - 4);
	CHECK(entries[0].name_hash == bm_crc32c(0xfffffffe, name, 4));
	CHECK(entries[0].name_xxh64 == bm_xxh64(name, 4));
	/* cut anywhere but between the two, the item is bad and gives nothing */
	for (uint32_t cut = 0; cut < size; cut++) {
		int64_t count = unpack_names(BTRFS_INODE_REF_KEY, payload, cut, entries, &bad);

		CHECK(cut == size / 2 ? count == 1 && !bad : count == 0 && bad == BM_BAD_ITEM_SIZE);
	}
}

static void test_dir_items(void)
{
	struct btrfs_dir_item item = {
	    .location = {.objectid = 300, .type = BTRFS_INODE_ITEM_KEY, .offset = 9},
	    .data_len = 3,
	    .name_len = 2,
	    .type = BTRFS_FT_XATTR,
	};
	struct bm_entry entries[ROOM];
	uint8_t payload[sizeof(item) + 5];
	int8_t bad;

	memcpy(payload, &item, sizeof(item));
	memcpy(payload + sizeof(item), "nnddd", 5);
	CHECK(unpack_names(BTRFS_XATTR_ITEM_KEY, payload, sizeof(payload), entries, &bad) == 1);
	CHECK(!bad && entries[0].child == 300 && entries[0].location_offset == 9);
	CHECK(entries[0].parent == 257 && entries[0].data_len == 3 && entries[0].index == 0);
	CHECK(unpack_names(BTRFS_DIR_INDEX_KEY, payload, sizeof(payload), entries, &bad) == 1);
	CHECK(entries[0].index == 256);
	for (uint32_t cut = 0; cut < sizeof(payload); cut++)
		CHECK(unpack_names(BTRFS_DIR_ITEM_KEY, payload, cut, entries, &bad) == 0 &&
		      bad == BM_BAD_ITEM_SIZE);
	/* lengths that only together are too long */
	item.name_len = item.data_len = 0xffff;
	memcpy(payload, &item, sizeof(item));
	CHECK(unpack_names(BTRFS_DIR_ITEM_KEY, payload, sizeof(payload), entries, &bad) == 0 &&
	      bad);
}

static int64_t unpack_refs(uint8_t type, const void *payload, uint32_t size, struct bm_ref *refs,
			   int8_t *bad)
{
	struct single one;
	int64_t count;

	single_init(&one, type, 4096, payload, size);
	count = bm_extent_refs(one.image, &one.columns, 1, refs, ROOM, bad);
	single_destroy(&one);
	return count;
}

static void test_references(void)
{
	struct btrfs_extent_item item = {.refs = 3, .flags = BTRFS_EXTENT_FLAG_DATA};
	struct btrfs_extent_data_ref data = {
	    .root = 5, .objectid = 257, .offset = 8192, .count = 2};
	struct btrfs_extent_inline_ref shared = {.type = BTRFS_SHARED_DATA_REF_KEY,
						 .offset = 65536};
	struct bm_ref refs[ROOM];
	uint8_t payload[256];
	uint32_t size = sizeof(item), middle, count = 1;
	int8_t bad;

	memcpy(payload, &item, sizeof(item));
	payload[size++] = BTRFS_EXTENT_DATA_REF_KEY;
	memcpy(payload + size, &data, sizeof(data));
	size += sizeof(data);
	middle = size;
	memcpy(payload + size, &shared, sizeof(shared));
	memcpy(payload + size + sizeof(shared), &count, sizeof(count));
	size += sizeof(shared) + sizeof(count);
	CHECK(unpack_refs(BTRFS_EXTENT_ITEM_KEY, payload, size, refs, &bad) == 2 && !bad);
	CHECK(refs[0].root == 5 && refs[0].objectid == 257 && refs[0].count == 2);
	CHECK(refs[1].root == 65536 && refs[1].sequence == 65536 && refs[1].count == 1);
	for (uint32_t cut = 0; cut < size; cut++) {
		int64_t found = unpack_refs(BTRFS_EXTENT_ITEM_KEY, payload, cut, refs, &bad);

		if (cut == sizeof(item) || cut == middle)
			CHECK(!bad && found == (cut == middle));
		else
			CHECK(bad == BM_BAD_ITEM_SIZE && found == 0);
	}
	payload[sizeof(item)] = 1;
	CHECK(unpack_refs(BTRFS_EXTENT_ITEM_KEY, payload, size, refs, &bad) == 0);
	CHECK(bad == BM_BAD_VALUE);
	CHECK(unpack_refs(BTRFS_TREE_BLOCK_REF_KEY, "", 0, refs, &bad) == 1 && !bad);
	CHECK(refs[0].root == 4096 && refs[0].count == 1);
	CHECK(unpack_refs(BTRFS_EXTENT_DATA_REF_KEY, &data, sizeof(data), refs, &bad) == 1);
	CHECK(refs[0].count == 2 && !bad);
	CHECK(unpack_refs(BTRFS_EXTENT_DATA_REF_KEY, &data, sizeof(data) - 1, refs, &bad) == 0);
	CHECK(unpack_refs(BTRFS_SHARED_DATA_REF_KEY, &count, 3, refs, &bad) == 0 && bad);
}

static void test_gather(void)
{
	struct single one;
	uint8_t rows[8];

	single_init(&one, 0, 0, "abcde", 5);
	CHECK(bm_gather(one.image, &one.position, &one.size, 1, 8, rows) == 0);
	CHECK(!memcmp(rows, "abcde\0\0", 8));
	CHECK(bm_gather(one.image, &one.position, &one.size, 1, 3, rows) == 0);
	CHECK(!memcmp(rows, "abc", 3));
	one.position++;
	CHECK(bm_gather(one.image, &one.position, &one.size, 1, 8, rows) == BM_PAST_END);
	one.position = UINT64_MAX;
	CHECK(bm_gather(one.image, &one.position, &one.size, 1, 8, rows) == BM_PAST_END);
	single_destroy(&one);
}

static void test_sector_sums(void)
{
	uint8_t data[2 * 4096], sums[2 * 32], digest[32];

	for (size_t i = 0; i < sizeof(data); i++)
		data[i] = (uint8_t)(i * 7 >> 3);
	for (int type = 0; type < 4; type++) {
		int size = bm_csum_sectors(type, data, 4096, 2, sums);

		CHECK(size == bm_csum(type, data + 4096, 4096, digest));
		CHECK(!memcmp(sums + size, digest, (size_t)size));
	}
}

int main(void)
{
	test_names();
	test_dir_items();
	test_references();
	test_gather();
	test_sector_sums();
	return finish("items");
}
