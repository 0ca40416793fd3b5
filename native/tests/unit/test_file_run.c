// SPDX-License-Identifier: GPL-2.0-only
/*
 * Runs of file extents judged by writing them one at a time, with the hint for each looked for
 * among all extents that the file has by then; and arguments that make no sense.
 */
#include "kernels.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "check.h"

#define SECTOR 4096u
#define METADATA 0x1000000ull
#define METADATA_LENGTH (8ull << 20)
#define DATA (METADATA + METADATA_LENGTH)
#define DATA_LENGTH (4ull << 20)
#define TREE 256
#define INO 257
#define MANY 600u
#define KNOWN 20u

static const uint8_t fsid[16] = "a filesystem id";
static uint32_t random_state = 1;

static uint32_t random_below(uint32_t limit)
{
	random_state = random_state * 1664525 + 1013904223;
	return (random_state >> 8) % limit;
}

struct device {
	uint8_t *memory;
	struct bm_image *image;
	struct bm_writer *writer;
};

static struct device create(void)
{
	const struct bm_stripe stripes[] = {{.offset = 0}, {.offset = METADATA_LENGTH}};
	const struct bm_chunk chunks[] = {
	    {.logical = METADATA,
	     .length = METADATA_LENGTH,
	     .type = 4,
	     .stripes = stripes,
	     .num_stripes = 1},
	    {.logical = DATA,
	     .length = DATA_LENGTH,
	     .stripes = stripes + 1,
	     .type = 1,
	     .num_stripes = 1},
	};
	struct device device = {.memory = calloc(1, METADATA_LENGTH + DATA_LENGTH)};
	struct bm_writer_args args = {
	    .base = device.memory, .transid = 9, .features = BM_WRITER_SKINNY_METADATA};
	struct bm_fault fault = {0};

	device.image =
	    bm_image_create(device.memory, METADATA_LENGTH + DATA_LENGTH, SECTOR, SECTOR, 0, fsid);
	CHECK(bm_image_set_chunks(device.image, chunks, 2, &fault) == 0);
	args.image = device.image;
	memcpy(args.fsid, fsid, sizeof(fsid));
	device.writer = bm_writer_create(&args, &fault);
	for (int i = 0; i < 2; i++)
		CHECK(bm_writer_add_group(device.writer, chunks[i].logical, chunks[i].length,
					  chunks[i].type, &fault) == 0);
	CHECK(bm_writer_new_tree(device.writer, 2, 2, 0, &fault) == 0);
	CHECK(bm_writer_new_tree(device.writer, 7, 7, 0, &fault) == 0);
	CHECK(bm_writer_new_tree(device.writer, TREE, TREE, 1, &fault) == 0);
	return device;
}

static void destroy(struct device *device)
{
	bm_writer_destroy(device->writer);
	bm_image_destroy(device->image);
	free(device->memory);
}

static uint64_t free_data(const struct device *device)
{
	struct bm_writer_group groups[2];

	CHECK(bm_writer_groups(device->writer, groups, 2) == 2);
	return groups[1].free;
}

/* ------------------------------------------------------------------------- one at a time ---- */

struct file {
	uint64_t offsets[KNOWN + MANY];
	uint64_t bytenr[KNOWN + MANY];
	size_t count;
};

/* The next extent, else the one before; the file's first where that is a hole. */
static uint64_t hint_for(const struct file *file, uint64_t offset)
{
	size_t behind = SIZE_MAX, before = SIZE_MAX, first = 0, near;

	for (size_t i = 0; i < file->count; i++) {
		uint64_t at = file->offsets[i];

		if (at > offset && (behind == SIZE_MAX || at < file->offsets[behind]))
			behind = i;
		if (at < offset && (before == SIZE_MAX || at > file->offsets[before]))
			before = i;
		if (at < file->offsets[first])
			first = i;
	}
	near = behind != SIZE_MAX ? behind : before;
	if (near == SIZE_MAX)
		return 0;
	return file->bytenr[near] ? file->bytenr[near] : file->bytenr[first];
}

static const uint64_t *sorted_by;

static int compare_index(const void *a, const void *b)
{
	uint64_t x = sorted_by[*(const uint32_t *)a], y = sorted_by[*(const uint32_t *)b];

	return (x > y) - (x < y);
}

static void shuffle_places(struct file *file, uint32_t known, uint32_t many)
{
	for (uint32_t i = 0; i < known + many; i++)
		file->offsets[i] = (uint64_t)i * SECTOR;
	for (uint32_t i = known + many; i > 1; i--) {
		uint32_t j = random_below(i);
		uint64_t other = file->offsets[j];

		file->offsets[j] = file->offsets[i - 1];
		file->offsets[i - 1] = other;
	}
}

static struct bm_file_extents args_of(const struct file *file, uint32_t known, uint32_t many,
				      uint32_t *order, const uint8_t *sums)
{
	for (uint32_t i = 0; i < known + many; i++)
		order[i] = i;
	sorted_by = file->offsets;
	qsort(order, known + many, sizeof(*order), compare_index);
	return (struct bm_file_extents){
	    .tree = TREE,
	    .root = TREE,
	    .ino = INO,
	    .length = SECTOR,
	    .disk_num_bytes = SECTOR,
	    .offsets = file->offsets + known,
	    .count = many,
	    .known_offsets = file->offsets,
	    .known_bytenr = file->bytenr,
	    .known = known,
	    .order = order,
	    .sums = sums,
	};
}

static void sort_known(struct file *file, uint32_t known)
{
	for (uint32_t i = 1; i < known; i++)
		for (uint32_t j = i; j && file->offsets[j - 1] > file->offsets[j]; j--) {
			uint64_t other = file->offsets[j];

			file->offsets[j] = file->offsets[j - 1];
			file->offsets[j - 1] = other;
		}
}

/* The same places in two devices: by a run, and with the rule spelled out. */
static void test_run(uint32_t known, uint32_t many)
{
	struct device run = create(), single = create();
	struct file *file = calloc(1, sizeof(*file));
	uint64_t *bytenr = calloc(many, sizeof(*bytenr)), size;
	uint32_t *order = calloc(known + many, sizeof(*order));
	const uint8_t sums[4] = {1, 2, 3, 4};
	struct bm_fault fault = {0};
	struct bm_file_extents args;
	uint64_t before;

	shuffle_places(file, known, many);
	sort_known(file, known);
	/* some of what is there are holes */
	for (uint32_t i = 0; i < known; i++)
		if (random_below(3)) {
			for (int device = 0; device < 2; device++)
				CHECK(bm_writer_reserve_data((device ? run : single).writer, SECTOR,
							     SECTOR,
							     DATA + random_state % 900 * SECTOR,
							     &file->bytenr[i], &size, &fault) == 0);
		}
	file->count = known;
	args = args_of(file, known, many, order, sums);
	before = free_data(&run);
	CHECK(bm_writer_file_extents(run.writer, &args, bytenr, &fault) == many);
	CHECK(free_data(&run) == before - (uint64_t)many * SECTOR);
	for (uint32_t i = 0; i < many; i++) {
		uint64_t hint = hint_for(file, file->offsets[file->count]);

		CHECK(bm_writer_reserve_data(single.writer, SECTOR, SECTOR, hint,
					     &file->bytenr[file->count], &size, &fault) == 0);
		CHECK(bytenr[i] == file->bytenr[file->count]);
		file->count++;
	}
	CHECK(bm_writer_run_refs(run.writer, &fault) > 0);
	destroy(&run);
	destroy(&single);
	free(file);
	free(bytenr);
	free(order);
}

/* Begun in order, finished backward: the addresses and items are those of a run in order. */
static void test_side_by_side(uint32_t many)
{
	struct device turn = create(), side = create();
	struct file *file = calloc(1, sizeof(*file));
	uint64_t *bytenr = calloc(2 * many, sizeof(*bytenr)), size;
	uint32_t *order = calloc(2 * many, sizeof(*order)), *finish = order + many;
	const uint8_t sums[4] = {1, 2, 3, 4};
	struct bm_fault fault = {0};
	struct bm_file_extents args;

	shuffle_places(file, 0, many);
	args = args_of(file, 0, many, order, sums);
	CHECK(bm_writer_file_extents(turn.writer, &args, bytenr, &fault) == many);
	for (uint32_t i = 0; i < many; i++)
		finish[i] = many - 1 - i;
	args.finish = finish;
	CHECK(bm_writer_file_extents(side.writer, &args, bytenr + many, &fault) == many);
	CHECK(!memcmp(bytenr, bytenr + many, many * sizeof(*bytenr)));
	for (uint32_t i = 0; i < many; i++) {
		const struct bm_key key = {INO, file->offsets[i], BTRFS_EXTENT_DATA_KEY};

		CHECK(bm_writer_delete(side.writer, TREE, &key, &key, 0, &fault) == 1);
	}
	CHECK(bm_writer_run_refs(side.writer, &fault) > 0);
	destroy(&turn);
	destroy(&side);

	/* no room for all: those that were begun are finished */
	side = create();
	for (uint32_t i = 0; i < many; i++)
		file->offsets[i] *= DATA_LENGTH;
	args = args_of(file, 0, many, order, NULL);
	args.length = args.disk_num_bytes = DATA_LENGTH / 2;
	args.finish = finish;
	CHECK(bm_writer_file_extents(side.writer, &args, bytenr, &fault) == (many < 2 ? many : 2));
	destroy(&side);

	/* the same place twice: what was begun and not finished is given back */
	side = create();
	size = free_data(&side);
	memset(file->offsets, 0, many * sizeof(*file->offsets));
	args = args_of(file, 0, many, order, NULL);
	args.finish = finish;
	if (many > 1) {
		CHECK(bm_writer_file_extents(side.writer, &args, bytenr, &fault) == BM_ERRNO);
		CHECK(fault.found == EEXIST && free_data(&side) == size - SECTOR);
		finish[0] = finish[1];
		CHECK(bm_writer_file_extents(side.writer, &args, bytenr, &fault) == BM_ERRNO);
		CHECK(fault.found == EINVAL);
		finish[0] = many;
		CHECK(bm_writer_file_extents(side.writer, &args, bytenr, &fault) == BM_ERRNO);
		CHECK(fault.found == EINVAL);
	}
	destroy(&side);
	free(file);
	free(bytenr);
	free(order);
}

/* ---------------------------------------------------------------------------- what is wrong -- */

static void test_bad_arguments(void)
{
	struct device device = create();
	struct file *file = calloc(1, sizeof(*file));
	uint64_t bytenr[4], before = free_data(&device);
	uint32_t order[4];
	struct bm_fault fault = {0};
	struct bm_file_extents args;

	shuffle_places(file, 0, 4);
	args = args_of(file, 0, 4, order, NULL);
	order[2] = 4;
	CHECK(bm_writer_file_extents(device.writer, &args, bytenr, &fault) == BM_ERRNO);
	CHECK(fault.found == EINVAL);
	args = args_of(file, 0, 4, order, NULL);
	args.length = 100;
	CHECK(bm_writer_file_extents(device.writer, &args, bytenr, &fault) == BM_ERRNO);
	args = args_of(file, 0, 4, order, NULL);
	args.tree = 999;
	CHECK(bm_writer_file_extents(device.writer, &args, bytenr, &fault) < 0);
	CHECK(free_data(&device) == before);
	/* more than there is room for: as many as fit */
	args = args_of(file, 0, 4, order, NULL);
	args.length = args.disk_num_bytes = DATA_LENGTH / 2;
	for (int i = 0; i < 4; i++)
		file->offsets[i] *= DATA_LENGTH;
	CHECK(bm_writer_file_extents(device.writer, &args, bytenr, &fault) == 2);
	CHECK(free_data(&device) == 0);
	destroy(&device);
	/* twice the same place: the second finds the first, and gives its room back */
	device = create();
	file->offsets[0] = file->offsets[1] = 0;
	args = args_of(file, 0, 2, order, NULL);
	CHECK(bm_writer_file_extents(device.writer, &args, bytenr, &fault) == BM_ERRNO);
	CHECK(fault.found == EEXIST && free_data(&device) == before - SECTOR);
	destroy(&device);
	free(file);
}

int main(void)
{
	test_run(0, 1);
	test_run(0, MANY);
	for (int i = 0; i < 10; i++)
		test_run(1 + random_below(KNOWN), 1 + random_below(MANY));
	test_side_by_side(1);
	test_side_by_side(MANY);
	test_bad_arguments();
	return finish("file_run");
}
