// SPDX-License-Identifier: GPL-2.0-only
/*
 * The free space tree of a block group from which space is taken and given back at random, judged
 * by an array of its sectors. Then the same with items that make no sense.
 */
#include "writer/writer.h"

#include <stdlib.h>
#include <string.h>

#include "check.h"

#define SECTOR 4096u
#define NODESIZE 4096u
#define METADATA 0x1000000ull
#define METADATA_LENGTH (16u << 20)
#define DATA (METADATA + METADATA_LENGTH)
/* 13 bitmaps, the last of 9 sectors: more than 146 extents become bitmaps, less than 46 extents */
#define DATA_LENGTH ((96u << 20) + 9 * SECTOR)
#define SECTORS (DATA_LENGTH / SECTOR)
#define HIGH 146
#define LOW 46
#define TREE 10
#define MAX_ITEMS 4000

static const uint8_t fsid[16] = "a filesystem id";
static uint8_t model[SECTORS]; /* 1: free */
static uint32_t random_state;

static struct bm_image *image;
static struct bm_writer *writer;
static uint8_t *memory;

static uint32_t random_below(uint32_t limit)
{
	random_state = random_state * 1664525 + 1013904223;
	return (random_state >> 8) % limit;
}

static void start(void)
{
	static const struct bm_stripe stripes[] = {{.offset = 0}, {.offset = METADATA_LENGTH}};
	struct bm_chunk chunks[2] = {
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
	struct bm_writer_args args = {
	    .transid = 9, .features = BM_WRITER_SKINNY_METADATA | BM_WRITER_FREE_SPACE_TREE};
	uint64_t size = (uint64_t)METADATA_LENGTH + DATA_LENGTH;
	struct bm_fault fault = {0};

	args.base = memory = calloc(1, size);
	args.image = image = bm_image_create(memory, size, NODESIZE, SECTOR, 0, fsid);
	CHECK(bm_image_set_chunks(image, chunks, 2, &fault) == 0);
	writer = bm_writer_create(&args, &fault);
	CHECK(writer != NULL);
	CHECK(bm_writer_add_group(writer, METADATA, METADATA_LENGTH, 4, &fault) == 0);
	CHECK(bm_writer_add_group(writer, DATA, DATA_LENGTH, 1, &fault) == 0);
	CHECK(bm_writer_new_tree(writer, TREE, TREE, 0, &fault) == 0);
	CHECK(bm_writer_free_space_group(writer, DATA, &fault) == 0);
	/* a group on the other side, whose items must be let alone */
	CHECK(bm_writer_free_space_group(writer, METADATA, &fault) == 0);
	memset(model, 1, sizeof(model));
}

static void stop(void)
{
	bm_writer_destroy(writer);
	bm_image_destroy(image);
	free(memory);
}

/* ----------------------------------------------------------------------------------- judging -- */

static uint32_t count_runs(void)
{
	uint32_t runs = 0;

	for (uint32_t i = 0; i < SECTORS; i++)
		runs += model[i] && (!i || !model[i - 1]);
	return runs;
}

/* What the items say against the model; the form is that which the thresholds ask for. */
static void check_items(int bitmaps)
{
	static uint64_t objectid[MAX_ITEMS], offset[MAX_ITEMS], block[MAX_ITEMS],
	    position[MAX_ITEMS];
	static uint16_t slot[MAX_ITEMS];
	static uint32_t size[MAX_ITEMS];
	static uint8_t type[MAX_ITEMS], found[SECTORS];
	struct bm_columns columns = {objectid, type, offset, block, slot, position, size};
	struct bm_key first = {DATA, 0, 0}, last = {UINT64_MAX, UINT64_MAX, UINT8_MAX};
	struct btrfs_free_space_info info;
	struct bm_fault fault = {0};
	struct bm_root root;
	int64_t count;

	memset(found, 0, sizeof(found));
	CHECK(bm_writer_root(writer, TREE, &root, &fault) == 0);
	count = bm_scan(&root, &first, &last, &columns, MAX_ITEMS, &fault);
	CHECK(count > 0 && type[0] == BTRFS_FREE_SPACE_INFO_KEY && offset[0] == DATA_LENGTH);
	memcpy(&info, memory + position[0], sizeof(info));
	CHECK(info.extent_count == count_runs());
	CHECK(info.flags == (uint32_t)bitmaps);
	CHECK(count - 1 == (bitmaps ? 13 : (int64_t)count_runs()));
	for (int64_t i = 1; i < count; i++) {
		uint64_t at = (objectid[i] - DATA) / SECTOR, sectors = offset[i] / SECTOR;

		CHECK(type[i] ==
		      (bitmaps ? BTRFS_FREE_SPACE_BITMAP_KEY : BTRFS_FREE_SPACE_EXTENT_KEY));
		CHECK(at + sectors <= SECTORS);
		CHECK(size[i] == (bitmaps ? (sectors + 7) / 8 : 0));
		for (uint64_t n = 0; n < sectors; n++)
			found[at + n] = !bitmaps || (memory[position[i] + n / 8] >> n % 8 & 1);
	}
	CHECK(memcmp(found, model, sizeof(model)) == 0);
}

/* A run of sectors that are all free or all taken, of at most `limit`. */
static uint32_t random_run(uint32_t limit, uint32_t *at)
{
	uint32_t length = 1;

	*at = random_below(SECTORS);
	limit = 1 + random_below(limit);
	while (length < limit && *at + length < SECTORS && model[*at + length] == model[*at])
		length++;
	return length;
}

static void test_random(uint32_t seed, uint32_t limit, int steps)
{
	int bitmaps = 0, changes = 0;

	start();
	random_state = seed;
	for (int step = 0; step < steps; step++) {
		struct bm_fault fault = {0};
		uint32_t at, length = random_run(limit, &at), runs;

		if (model[at])
			CHECK(bm_free_space_remove(writer, DATA + (uint64_t)at * SECTOR,
						   (uint64_t)length * SECTOR, &fault) == 0);
		else
			CHECK(bm_free_space_add(writer, DATA + (uint64_t)at * SECTOR,
						(uint64_t)length * SECTOR, &fault) == 0);
		memset(model + at, !model[at], length);
		runs = count_runs();
		if (bitmaps ? runs < LOW : runs > HIGH) {
			bitmaps = !bitmaps;
			changes++;
			check_items(bitmaps);
		}
		if (step % 97 == 0)
			check_items(bitmaps);
	}
	check_items(bitmaps);
	CHECK(changes > 0);
	/* everything is given back, which ends in one extent */
	for (uint32_t at = 0; at < SECTORS; at++) {
		struct bm_fault fault = {0};

		if (!model[at])
			CHECK(bm_free_space_add(writer, DATA + (uint64_t)at * SECTOR, SECTOR,
						&fault) == 0);
		model[at] = 1;
	}
	check_items(0);
	stop();
}

static void test_refusals(void)
{
	struct bm_fault fault = {0};

	start();
	CHECK(bm_free_space_add(writer, DATA, 0, &fault) == BM_BAD_VALUE);
	CHECK(bm_free_space_add(writer, DATA, SECTOR / 2, &fault) == BM_BAD_VALUE);
	CHECK(bm_free_space_add(writer, DATA, DATA_LENGTH + SECTOR, &fault) == BM_BAD_VALUE);
	CHECK(bm_free_space_add(writer, DATA - (1 << 30), SECTOR, &fault) < 0);
	CHECK(bm_free_space_remove(writer, DATA, SECTOR, &fault) == 0);
	CHECK(bm_free_space_remove(writer, DATA, SECTOR, &fault) == BM_BAD_VALUE);
	stop();
}

/* ------------------------------------------------------------------------------------ damage -- */

/* An item or a payload that no kernel writes. */
static void damage(void)
{
	struct bm_key key = {DATA + random_below(SECTORS) * (uint64_t)SECTOR,
			     random_below(SECTORS) * (uint64_t)SECTOR,
			     (uint8_t)(198 + random_below(4))};
	struct bm_key info = {DATA, DATA_LENGTH, BTRFS_FREE_SPACE_INFO_KEY};
	uint8_t data[300];
	struct bm_fault fault = {0};
	uint32_t size = random_below(sizeof(data));

	for (size_t i = 0; i < sizeof(data); i++)
		data[i] = (uint8_t)random_below(256);
	if (random_below(4) == 0)
		key.offset += random_below(SECTOR);
	if (random_below(4) == 0)
		key.objectid += random_below(SECTOR);
	switch (random_below(3)) {
	case 0:
		bm_writer_update(writer, TREE, &info, random_below(8), data, 1, &fault);
		break;
	case 1:
		bm_writer_insert(writer, TREE, &key, &size, 1, data, &fault);
		break;
	default:
		key.objectid = DATA + random_below(13) * (uint64_t)(8 << 20);
		key.type = BTRFS_FREE_SPACE_BITMAP_KEY;
		key.offset = 8 << 20;
		bm_writer_truncate(writer, TREE, &key, random_below(256), 0, &fault);
	}
}

/* The faults are not looked at: what counts is what AddressSanitizer says. */
static void test_damage(int cases)
{
	for (int i = 0; i < cases; i++) {
		random_state = (uint32_t)i;
		start();
		for (int step = 0; step < 300; step++) {
			struct bm_fault fault = {0};
			uint64_t at = DATA + random_below(SECTORS) * (uint64_t)SECTOR;
			uint64_t length = (1 + random_below(1 << (1 + i % 12))) * (uint64_t)SECTOR;

			if (random_below(2))
				bm_free_space_add(writer, at, length, &fault);
			else
				bm_free_space_remove(writer, at, length, &fault);
			/* enough of them first for bitmaps in every second case */
			if (step > i % 2 * 250 && random_below(4) == 0)
				damage();
		}
		stop();
	}
}

int main(void)
{
	test_refusals();
	test_random(1, 40, 3000);
	test_random(2, 500, 3000);
	test_random(3, 3000, 3000);
	test_damage(120);
	return finish("free_space");
}
