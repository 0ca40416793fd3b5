// SPDX-License-Identifier: GPL-2.0-only
/*
 * Free ranges judged by a map of bytes, the rules by which blocks and data are placed, references
 * of data at random judged by a table of counts, and the same on damaged extent trees, where all
 * that counts is that nothing is read or written out of place.
 */
#include "writer/space/free_map.h"
#include "kernels.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "check.h"

#define SECTOR 4096u
#define NODESIZE 4096u
#define METADATA 0x1000000ull
#define METADATA_LENGTH (8ull << 20)
#define DATA (METADATA + METADATA_LENGTH)
#define DATA_LENGTH (4ull << 20)
#define EXTENT_TREE 2
#define CSUM_TREE 7
#define UNITS 2000u
#define EXTENTS 40
#define OWNERS 60

static const uint8_t fsid[16] = "a filesystem id";
static uint32_t random_state;

static uint32_t random_below(uint32_t limit)
{
	random_state = random_state * 1664525 + 1013904223;
	return (random_state >> 8) % limit;
}

/* ---------------------------------------------------------------------------------- free map -- */

static uint8_t is_free[UNITS + 1];

static int all_are(uint32_t start, uint32_t size, uint8_t what)
{
	for (uint32_t i = start; i < start + size; i++)
		if (is_free[i] != what)
			return 0;
	return 1;
}

/* The range of free units that `at` lies in. */
static struct free_range range_at(uint32_t at)
{
	uint32_t start = at, end = at;

	while (start && is_free[start - 1])
		start--;
	while (is_free[end])
		end++;
	return (struct free_range){start, end - start};
}

static void check_find(const struct free_map *map, uint32_t from, uint32_t size)
{
	struct free_range found = {0}, wanted = {0};
	uint32_t at = from;

	while (at < UNITS && !wanted.size) {
		struct free_range here = is_free[at] ? range_at(at) : (struct free_range){0};

		if (here.size >= size)
			wanted = here;
		at = here.size ? (uint32_t)(here.start + here.size) : at + 1;
	}
	CHECK(free_map_find(map, from, size, &found) == (wanted.size > 0));
	CHECK(found.start == wanted.start && found.size == wanted.size);
}

static void check_map(const struct free_map *map)
{
	struct free_range largest = {0}, found = {0};
	uint64_t total = 0;
	size_t count = 0;

	for (uint32_t at = 0; at < UNITS; at++) {
		struct free_range here;

		if (!is_free[at] || (at && is_free[at - 1]))
			continue;
		here = range_at(at);
		count++;
		total += here.size;
		if (here.size > largest.size)
			largest = here;
	}
	CHECK(map->count == count && map->total == total);
	CHECK(free_map_largest(map, &found) == (count > 0));
	CHECK(found.start == largest.start && found.size == largest.size);
}

static void test_free_map(void)
{
	struct free_map map = {0};
	struct free_range found;

	CHECK(!free_map_find(&map, 0, 1, &found) && !free_map_largest(&map, &found));
	CHECK(free_map_take(&map, 0, 1) == BM_BAD_VALUE);
	for (uint32_t step = 0; step < 20000; step++) {
		/* now much is free in a few pieces, now little in many */
		uint32_t longest = step / 2000 % 2 ? 3 : 60;
		uint32_t size = 1 + random_below(longest), start = random_below(UNITS - size);
		int give = random_below(2), possible = all_are(start, size, !give);
		int ret = give ? free_map_add(&map, start, size) : free_map_take(&map, start, size);

		CHECK(ret == (possible ? BM_OK : BM_BAD_VALUE));
		if (possible)
			memset(is_free + start, give, size);
		check_find(&map, random_below(UNITS), 1 + random_below(longest));
		if (step % 100 == 0)
			check_map(&map);
	}
	CHECK(free_map_add(&map, 0, 0) == BM_BAD_VALUE);
	CHECK(free_map_add(&map, UINT64_MAX, 1) == BM_BAD_VALUE);
	free_map_clear(&map);
}

/* ----------------------------------------------------------------------------------- devices -- */

struct device {
	uint8_t *memory;
	struct bm_image *image;
	struct bm_writer *writer;
	uint64_t transid;
};

static struct device create(void)
{
	const struct bm_stripe stripes[] = {{.offset = 0}, {.offset = METADATA_LENGTH}};
	struct bm_chunk chunks[] = {
	    {.logical = METADATA,
	     .length = METADATA_LENGTH,
	     .type = 4,
	     .stripes = stripes,
	     .num_stripes = 1},
	    {.logical = DATA,
	     .length = DATA_LENGTH,
	     .type = 1,
	     .stripes = stripes + 1,
	     .num_stripes = 1},
	};
	struct device device = {.memory = calloc(1, METADATA_LENGTH + DATA_LENGTH), .transid = 9};
	struct bm_writer_args args = {
	    .base = device.memory, .transid = 9, .features = BM_WRITER_SKINNY_METADATA};
	struct bm_fault fault = {0};

	device.image = bm_image_create(device.memory, METADATA_LENGTH + DATA_LENGTH, NODESIZE,
				       SECTOR, 0, fsid);
	CHECK(bm_image_set_chunks(device.image, chunks, 2, &fault) == 0);
	args.image = device.image;
	memcpy(args.fsid, fsid, sizeof(fsid));
	device.writer = bm_writer_create(&args, &fault);
	CHECK(device.writer != NULL);
	for (int i = 0; i < 2; i++)
		CHECK(bm_writer_add_group(device.writer, chunks[i].logical, chunks[i].length,
					  chunks[i].type, &fault) == 0);
	return device;
}

static struct device create_with_trees(void)
{
	struct device device = create();
	struct bm_fault fault = {0};

	CHECK(bm_writer_new_tree(device.writer, EXTENT_TREE, EXTENT_TREE, 0, &fault) == 0);
	CHECK(bm_writer_new_tree(device.writer, CSUM_TREE, CSUM_TREE, 0, &fault) == 0);
	return device;
}

static void destroy(struct device *device)
{
	bm_writer_destroy(device->writer);
	bm_image_destroy(device->image);
	free(device->memory);
}

static int commit(struct device *device, struct bm_fault *fault)
{
	if (bm_writer_run_refs(device->writer, fault) < 0 ||
	    bm_writer_write_blocks(device->writer, fault) < 0 ||
	    bm_writer_unpin(device->writer, fault) < 0)
		return fault->code;
	bm_writer_set_transid(device->writer, ++device->transid);
	return BM_OK;
}

static uint64_t free_of(const struct device *device, int group)
{
	struct bm_writer_group groups[2];

	CHECK(bm_writer_groups(device->writer, groups, 2) == 2);
	return groups[group].free;
}

/* ------------------------------------------------------------------------------------- places -- */

static uint64_t new_tree(struct device *device, uint64_t id)
{
	struct bm_writer_tree tree = {0};
	struct bm_fault fault = {0};

	CHECK(bm_writer_new_tree(device->writer, id, id, 0, &fault) == 0);
	CHECK(bm_writer_get_tree(device->writer, id, &tree, &fault) == 0);
	return tree.bytenr;
}

/* Blocks ascend; one that came and went in a transaction is free, but not used at once again. */
static void test_blocks(void)
{
	struct device device = create_with_trees();
	struct bm_fault fault = {0};
	uint64_t first = new_tree(&device, 300), before = free_of(&device, 0);

	CHECK(first == METADATA + 2 * NODESIZE);
	CHECK(new_tree(&device, 301) == first + NODESIZE);
	CHECK(bm_writer_waiting_refs(device.writer) == 4);
	CHECK(bm_writer_drop_tree(device.writer, 300, &fault) == 0);
	CHECK(bm_writer_waiting_refs(device.writer) == 3);
	CHECK(free_of(&device, 0) == before);
	CHECK(new_tree(&device, 302) == first + 2 * NODESIZE);
	/* of the transaction before: pinned until the end of this one */
	CHECK(commit(&device, &fault) == 0);
	before = free_of(&device, 0);
	CHECK(bm_writer_drop_tree(device.writer, 301, &fault) == 0);
	CHECK(bm_writer_run_refs(device.writer, &fault) > 0);
	CHECK(free_of(&device, 0) < before);
	CHECK(commit(&device, &fault) == 0);
	CHECK(free_of(&device, 0) == before + NODESIZE);
	/* until nothing is left; what was freed below the cluster is used last */
	for (uint64_t id = 1000; free_of(&device, 0); id++)
		new_tree(&device, id);
	CHECK(bm_writer_new_tree(device.writer, 999, 999, 0, &fault) == BM_ERRNO);
	CHECK(fault.found == ENOSPC && fault.tree == 999);
	destroy(&device);
}

static void test_data_places(void)
{
	struct device device = create();
	struct bm_fault fault = {0};
	uint64_t bytenr, size, occupied = DATA + SECTOR, one = SECTOR;

	CHECK(bm_writer_occupy(device.writer, &occupied, &one, 1, 1, &fault) == 0);
	CHECK(bm_writer_occupy(device.writer, &occupied, &one, 1, 1, &fault) == BM_BAD_VALUE);
	/* without a hint from the largest range, with one from the first that is large enough */
	CHECK(bm_writer_reserve_data(device.writer, SECTOR, SECTOR, 0, &bytenr, &size, &fault) ==
	      0);
	CHECK(bytenr == DATA + 2 * SECTOR && size == SECTOR);
	CHECK(bm_writer_reserve_data(device.writer, SECTOR, SECTOR, DATA + SECTOR, &bytenr, &size,
				     &fault) == 0);
	CHECK(bytenr == DATA);
	CHECK(bm_writer_release_data(device.writer, DATA, SECTOR, &fault) == 0);
	CHECK(bm_writer_release_data(device.writer, DATA, SECTOR, &fault) == BM_BAD_VALUE);
	/*
	 * More than there is: as much as a group has in all, which is in two pieces, then half of
	 * that.
	 */
	CHECK(bm_writer_reserve_data(device.writer, 3 * DATA_LENGTH, SECTOR, 0, &bytenr, &size,
				     &fault) == 0);
	CHECK(bytenr == DATA + 3 * SECTOR && size == DATA_LENGTH / 2 - SECTOR);
	CHECK(bm_writer_reserve_data(device.writer, DATA_LENGTH / 2 - 2 * SECTOR, SECTOR, 0,
				     &bytenr, &size, &fault) == 0);
	CHECK(size == DATA_LENGTH / 2 - 2 * SECTOR);
	CHECK(bm_writer_reserve_data(device.writer, 8 * SECTOR, 2 * SECTOR, 0, &bytenr, &size,
				     &fault) == BM_ERRNO);
	CHECK(fault.found == ENOSPC);
	CHECK(bm_writer_reserve_data(device.writer, 100, 100, 0, &bytenr, &size, &fault) ==
	      BM_ERRNO);
	CHECK(fault.found == EINVAL);
	/* groups neither overlap nor lie outside of chunks */
	CHECK(bm_writer_add_group(device.writer, DATA + SECTOR, SECTOR, 1, &fault) == BM_BAD_VALUE);
	CHECK(bm_writer_add_group(device.writer, 1 << 20, SECTOR, 1, &fault) == BM_UNMAPPED);
	destroy(&device);
}

/* ---------------------------------------------------------------------------------- references -- */

struct extent {
	uint64_t bytenr;
	uint64_t size; /* 0: there is none */
	uint32_t refs[OWNERS];
	uint32_t total;
};

static struct bm_data_ref ref_of(const struct extent *extent, uint32_t owner)
{
	struct bm_data_ref ref = {.bytenr = extent->bytenr, .num_bytes = extent->size};

	/* every fourth by the address of a leaf */
	if (owner % 4 == 3)
		ref.parent = METADATA + (uint64_t)owner * NODESIZE;
	ref.root = 5 + owner % 3 * 300;
	ref.ino = 256 + owner / 3;
	ref.offset = (uint64_t)owner % 5 * SECTOR;
	return ref;
}

static int change_extent(struct device *device, struct extent *extent, struct bm_fault *fault)
{
	struct bm_writer *writer = device->writer;
	uint32_t owner = random_below(OWNERS);
	struct bm_data_ref ref;
	uint8_t sums[64] = {0};

	if (!extent->size) {
		if (bm_writer_reserve_data(writer, SECTOR * (1 + random_below(16)), SECTOR, 0,
					   &extent->bytenr, &extent->size, fault) < 0)
			return fault->code;
		memset(extent->refs, 0, sizeof(extent->refs));
		extent->total = extent->refs[owner] = 1;
		ref = ref_of(extent, owner);
		if (bm_writer_alloc_data_ref(writer, &ref, 1, fault) < 0)
			return fault->code;
		return bm_writer_insert_csums(writer, CSUM_TREE, extent->bytenr, sums,
					      extent->size / SECTOR, fault);
	}
	if (extent->refs[owner] && random_below(2)) {
		ref = ref_of(extent, owner);
		extent->refs[owner]--;
		if (!--extent->total)
			extent->size = 0;
		return bm_writer_drop_data_ref(writer, &ref, 1, fault);
	}
	ref = ref_of(extent, owner);
	extent->refs[owner]++;
	extent->total++;
	return bm_writer_inc_data_ref(writer, &ref, 1, fault);
}

/* Drop all references of an extent, in an order of their own. */
static void drop_extent(struct device *device, struct extent *extent)
{
	struct bm_fault fault = {0};

	while (extent->total) {
		uint32_t owner = random_below(OWNERS);
		struct bm_data_ref ref = ref_of(extent, owner);

		if (!extent->refs[owner])
			continue;
		extent->refs[owner]--;
		extent->total--;
		CHECK(bm_writer_drop_data_ref(device->writer, &ref, 1, &fault) == 0);
	}
	extent->size = 0;
}

static void check_extents(struct device *device, const struct extent *extents)
{
	struct bm_fault fault = {0};
	uint64_t refs, flags;

	for (int i = 0; i < EXTENTS; i++) {
		if (!extents[i].size)
			continue;
		CHECK(bm_writer_extent_info(device->writer, extents[i].bytenr, &refs, &flags,
					    &fault) == 0);
		CHECK(refs == extents[i].total);
	}
}

static uint32_t items_of(const struct device *device, uint64_t id)
{
	struct bm_block block;
	struct bm_fault fault = {0};
	struct bm_root root;

	CHECK(bm_writer_root(device->writer, id, &root, &fault) == 0);
	CHECK(bm_walk_blocks(&root, 0, &block, 1, &fault) > 0);
	return root.level ? UINT32_MAX : block.nritems;
}

static void test_refs(void)
{
	static struct extent extents[EXTENTS];
	struct device device = create_with_trees();
	struct bm_fault fault = {0};

	for (int step = 0; step < 12000; step++) {
		CHECK(change_extent(&device, &extents[random_below(EXTENTS)], &fault) == 0);
		if (!random_below(200)) {
			check_extents(&device, extents);
			CHECK(bm_writer_run_refs(device.writer, &fault) > 0);
			check_extents(&device, extents);
		}
		if (!random_below(500))
			CHECK(commit(&device, &fault) == 0);
	}
	for (int i = 0; i < EXTENTS; i++)
		drop_extent(&device, &extents[i]);
	CHECK(commit(&device, &fault) == 0);
	CHECK(items_of(&device, CSUM_TREE) == 0);
	CHECK(items_of(&device, EXTENT_TREE) == 2);
	CHECK(free_of(&device, 1) == DATA_LENGTH);
	destroy(&device);
}

/* ---------------------------------------------------------------------------------- snapshots -- */

/* A file extent in a subvolume, of an extent that is new. */
static void write_extent(struct device *device, uint64_t tree, uint64_t ino, uint64_t offset)
{
	struct btrfs_file_extent_item item = {.generation = device->transid,
					      .type = BTRFS_FILE_EXTENT_REG};
	struct bm_key key = {.objectid = ino, .type = BTRFS_EXTENT_DATA_KEY, .offset = offset};
	struct bm_data_ref ref = {.root = tree, .ino = ino, .offset = offset};
	uint32_t size = sizeof(item);
	struct bm_fault fault = {0};

	if (bm_writer_reserve_data(device->writer, SECTOR, SECTOR, 0, &ref.bytenr, &ref.num_bytes,
				   &fault) < 0)
		return;
	item.disk_bytenr = ref.bytenr;
	item.disk_num_bytes = item.num_bytes = item.ram_bytes = SECTOR;
	if (bm_writer_insert(device->writer, tree, &key, &size, 1, (const uint8_t *)&item,
			     &fault) == 0) {
		CHECK(bm_writer_alloc_data_ref(device->writer, &ref, 1, &fault) == 0);
		return;
	}
	CHECK(fault.code == BM_ERRNO && fault.found == EEXIST);
	CHECK(bm_writer_release_data(device->writer, ref.bytenr, SECTOR, &fault) == 0);
}

/* Items that make leaves split; or they go again. */
static void change_items(struct device *device, uint64_t tree)
{
	static const uint8_t zeroes[800];
	struct bm_key key = {.objectid = 256 + random_below(300), .type = BTRFS_XATTR_ITEM_KEY};
	struct bm_key last = {.objectid = key.objectid + 10, .type = BTRFS_XATTR_ITEM_KEY};
	uint32_t size = random_below(800);
	struct bm_fault fault = {0};
	int ret;

	if (random_below(12)) {
		ret = bm_writer_insert(device->writer, tree, &key, &size, 1, zeroes, &fault);
		CHECK(ret == 0 || (ret == BM_ERRNO && fault.found == EEXIST));
		return;
	}
	/* extents of files keep their references: only what lies between inodes goes */
	for (; key.objectid <= last.objectid; key.objectid++)
		CHECK(bm_writer_delete(device->writer, tree, &key, &key, 0, &fault) >= 0);
}

/* Snapshots are taken, changed and dropped; in the end nothing is left of them. */
static void test_snapshots(void)
{
	struct device device = create_with_trees();
	struct bm_writer_tree tree;
	struct bm_fault fault = {0};
	uint64_t first = 256, next = 257;

	CHECK(bm_writer_new_tree(device.writer, first, first, 1, &fault) == 0);
	for (int step = 0; step < 4000; step++) {
		uint64_t id = first + random_below((uint32_t)(next - first));

		if (random_below(4))
			change_items(&device, id);
		else
			write_extent(&device, id, 256 + random_below(300),
				     random_below(64) * SECTOR);
		if (random_below(150))
			continue;
		CHECK(bm_writer_copy_root(device.writer, id, next++, &fault) == 0);
		CHECK(commit(&device, &fault) == 0);
		CHECK(bm_writer_get_tree(device.writer, id, &tree, &fault) == 0);
		tree.force_cow = 0;
		CHECK(bm_writer_set_tree(device.writer, &tree, &fault) == 0);
		if (next - first > 4)
			CHECK(bm_writer_drop_tree(device.writer, first++, &fault) == 0);
	}
	while (first < next)
		CHECK(bm_writer_drop_tree(device.writer, first++, &fault) == 0);
	CHECK(commit(&device, &fault) == 0);
	CHECK(items_of(&device, EXTENT_TREE) == 2);
	CHECK(free_of(&device, 0) == METADATA_LENGTH - 2 * NODESIZE);
	CHECK(free_of(&device, 1) == DATA_LENGTH);
	destroy(&device);
}

static void test_refusals(void)
{
	struct device device = create_with_trees();
	struct bm_data_ref ref = {.bytenr = DATA, .num_bytes = SECTOR, .root = 5, .ino = 256};
	struct bm_fault fault = {0};

	CHECK(commit(&device, &fault) == 0);
	/* a reference that the extent tree does not have */
	CHECK(bm_writer_drop_data_ref(device.writer, &ref, 1, &fault) == 0);
	CHECK(bm_writer_run_refs(device.writer, &fault) == BM_NOT_FOUND);
	CHECK(fault.tree == EXTENT_TREE && fault.found == DATA);
	ref.num_bytes = DATA_LENGTH + SECTOR;
	CHECK(bm_writer_inc_data_ref(device.writer, &ref, 1, &fault) == BM_BAD_VALUE);
	ref.bytenr = DATA + DATA_LENGTH;
	CHECK(bm_writer_inc_data_ref(device.writer, &ref, 1, &fault) == BM_UNMAPPED);
	/* a tree block is no data */
	ref.bytenr = new_tree(&device, 300);
	ref.num_bytes = NODESIZE;
	CHECK(bm_writer_inc_data_ref(device.writer, &ref, 1, &fault) == BM_BAD_VALUE);
	destroy(&device);
}

/* ------------------------------------------------------------------------------------- damage -- */

/* Some bytes of payloads in some leaf of the extent tree become others. */
static void damage(struct device *device)
{
	static struct bm_block blocks[2048];
	struct bm_fault fault = {0};
	struct bm_root root;
	int64_t count;
	uint8_t *block;
	uint32_t end;

	CHECK(bm_writer_root(device->writer, EXTENT_TREE, &root, &fault) == 0);
	count = bm_walk_blocks(&root, 0, blocks, 2048, &fault);
	CHECK(count > 0);
	for (;;) {
		const struct bm_block *chosen = &blocks[random_below((uint32_t)count)];

		if (chosen->level || !chosen->nritems)
			continue;
		block = device->memory + (chosen->logical - METADATA);
		end = ((const struct btrfs_item *)(block + 101))[chosen->nritems - 1].offset;
		break;
	}
	for (uint32_t n = 1 + random_below(8); n > 0; n--)
		block[101 + end + random_below(NODESIZE - 101 - end)] =
		    random_below(2) ? (uint8_t)random_below(256)
				    : (uint8_t)(172 + random_below(14));
}

static void test_damage(int cases)
{
	static struct extent extents[EXTENTS];

	for (int turn = 0; turn < cases; turn++) {
		struct device device = create_with_trees();
		struct bm_fault fault = {0};
		int ret = 0;

		memset(extents, 0, sizeof(extents));
		for (int step = 0; step < 600; step++)
			CHECK(change_extent(&device, &extents[random_below(EXTENTS)], &fault) == 0);
		CHECK(bm_writer_run_refs(device.writer, &fault) > 0);
		damage(&device);
		for (int step = 0; step < 600 && ret >= 0; step++) {
			ret = change_extent(&device, &extents[random_below(EXTENTS)], &fault);
			if (ret >= 0 && !random_below(100))
				ret = commit(&device, &fault);
		}
		CHECK(ret >= 0 || fault.code == ret);
		destroy(&device);
	}
}

int main(void)
{
	test_free_map();
	test_blocks();
	test_data_places();
	test_refs();
	test_snapshots();
	test_refusals();
	test_damage(40);
	return finish("space");
}
