// SPDX-License-Identifier: GPL-2.0-only
/*
 * A tree that is changed at random, judged by a sorted array of what must be in it; its blocks are
 * verified as they would lie on a device, in both copies. Then the same changes in images with
 * damaged blocks, where all that counts is that nothing is read or written out of place.
 */
#include "image/checksum.h"
#include "kernels.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "check.h"

#define SECTOR 4096u
#define LOGICAL 0x1000000ull
#define LENGTH (16u << 20)
#define TREE 300
#define METADATA_DUP (4 | 32)
#define MAX_ITEMS 6000
#define MAX_SIZE 2000

static const uint8_t fsid[16] = "a filesystem id";
static const struct bm_key lowest, highest = {UINT64_MAX, UINT64_MAX, UINT8_MAX};

/* The memory of a device, with what changes it. */
struct device {
	uint8_t *memory;
	uint32_t nodesize;
	uint64_t transid;
	struct bm_image *image;
	struct bm_writer *writer;
};

/* An item: its payload is `size` bytes, of which byte i is seed + i + skip. */
struct entry {
	struct bm_key key;
	uint32_t size;
	uint8_t seed;
};

static struct entry model[MAX_ITEMS];
static size_t model_count;
static uint32_t random_state;

static uint32_t random_below(uint32_t limit)
{
	random_state = random_state * 1664525 + 1013904223;
	return (random_state >> 8) % limit;
}

static int compare(const struct bm_key *a, const struct bm_key *b)
{
	if (a->objectid != b->objectid)
		return a->objectid < b->objectid ? -1 : 1;
	if (a->type != b->type)
		return a->type < b->type ? -1 : 1;
	return a->offset == b->offset ? 0 : a->offset < b->offset ? -1 : 1;
}

/* ----------------------------------------------------------------------------------- devices -- */

static void start(struct device *device)
{
	struct bm_stripe stripes[] = {{.offset = 0}, {.offset = LENGTH}};
	struct bm_chunk chunk = {.logical = LOGICAL,
				 .length = LENGTH,
				 .type = METADATA_DUP,
				 .stripes = stripes,
				 .num_stripes = 2};
	struct bm_writer_args args = {.base = device->memory,
				      .transid = device->transid,
				      .features = BM_WRITER_SKINNY_METADATA};
	struct bm_fault fault = {0};

	device->image =
	    bm_image_create(device->memory, 2ull * LENGTH, device->nodesize, SECTOR, 0, fsid);
	CHECK(bm_image_set_chunks(device->image, &chunk, 1, &fault) == 0);
	args.image = device->image;
	memcpy(args.fsid, fsid, sizeof(fsid));
	device->writer = bm_writer_create(&args, &fault);
	CHECK(device->writer != NULL);
	CHECK(bm_writer_add_group(device->writer, LOGICAL, LENGTH, METADATA_DUP, &fault) == 0);
}

static void stop(struct device *device)
{
	bm_writer_destroy(device->writer);
	bm_image_destroy(device->image);
}

static struct device create(uint32_t nodesize)
{
	struct device device = {.memory = calloc(2, LENGTH), .nodesize = nodesize, .transid = 9};
	struct bm_fault fault = {0};

	start(&device);
	CHECK(bm_writer_new_tree(device.writer, TREE, TREE, 0, &fault) == 0);
	return device;
}

/* ------------------------------------------------------------------------------------- model -- */

static size_t place_of(const struct bm_key *key)
{
	size_t place = 0, high = model_count;

	while (place < high) {
		size_t mid = (place + high) / 2;

		if (compare(&model[mid].key, key) < 0)
			place = mid + 1;
		else
			high = mid;
	}
	return place;
}

static int known(size_t place, const struct bm_key *key)
{
	return place < model_count && compare(&model[place].key, key) == 0;
}

static void model_insert(size_t place, struct entry entry)
{
	memmove(model + place + 1, model + place, (model_count - place) * sizeof(*model));
	model[place] = entry;
	model_count++;
}

static void model_delete(size_t place, size_t count)
{
	model_count -= count;
	memmove(model + place, model + place + count, (model_count - place) * sizeof(*model));
}

static void fill(uint8_t *data, uint8_t seed, uint32_t from, uint32_t size)
{
	for (uint32_t i = 0; i < size; i++)
		data[i] = (uint8_t)(seed + from + i);
}

/* ----------------------------------------------------------------------------------- changes -- */

static struct bm_key random_key(void)
{
	return (struct bm_key){.objectid = 256 + random_below(400),
			       .type = (uint8_t)(1 + random_below(3)),
			       .offset = random_below(20)};
}

static void insert(struct device *device)
{
	struct entry entry = {.key = random_key(),
			      .size = random_below(random_below(8) ? 120 : MAX_SIZE),
			      .seed = (uint8_t)random_below(256)};
	size_t place = place_of(&entry.key);
	struct bm_fault fault = {0};
	uint8_t data[MAX_SIZE];
	int ret;

	if (model_count == MAX_ITEMS)
		return;
	fill(data, entry.seed, 0, entry.size);
	ret = (random_below(2) ? bm_writer_insert : bm_writer_insert_each)(
	    device->writer, TREE, &entry.key, &entry.size, 1, data, &fault);
	if (!known(place, &entry.key)) {
		CHECK(ret == 0);
		model_insert(place, entry);
	} else if (entry.size + model[place].size + 25 > device->nodesize - 101) {
		/* the kernel would join the two items */
		CHECK(ret == BM_ERRNO && fault.found == EOVERFLOW);
	} else {
		CHECK(ret == BM_ERRNO && fault.found == EEXIST);
	}
}

static void insert_run(struct device *device)
{
	struct bm_key keys[20];
	uint32_t sizes[20];
	uint8_t data[20 * 100];
	size_t bytes = 0, count = 1 + random_below(19);
	struct bm_key key = {.objectid = 1000 + random_below(1000), .type = 7};
	struct bm_fault fault = {0};
	size_t place = place_of(&key);
	int each = (int)random_below(2);

	if (model_count + count > MAX_ITEMS || known(place, &key) ||
	    (place < model_count && model[place].key.objectid == key.objectid))
		return;
	for (size_t i = 0; i < count; i++, key.offset++) {
		struct entry entry = {.key = key, .size = random_below(100), .seed = (uint8_t)i};

		keys[i] = key;
		sizes[i] = entry.size;
		fill(data + bytes, entry.seed, 0, entry.size);
		bytes += entry.size;
		model_insert(place + i, entry);
	}
	CHECK((each ? bm_writer_insert_each : bm_writer_insert)(device->writer, TREE, keys, sizes,
								count, data, &fault) == 0);
}

static void delete (struct device *device)
{
	struct bm_fault fault = {0};
	size_t place, count = 1 + random_below(random_below(20) ? 2 : 200);

	if (!model_count)
		return;
	place = random_below((uint32_t)model_count);
	if (count > model_count - place)
		count = model_count - place;
	CHECK(bm_writer_delete(device->writer, TREE, &model[place].key,
			       &model[place + count - 1].key, (int)random_below(2),
			       &fault) == (int64_t)count);
	model_delete(place, count);
}

static void resize(struct device *device)
{
	struct bm_fault fault = {0};
	uint8_t data[200];
	uint32_t size = random_below(200);
	struct entry *entry;
	int ret;

	if (!model_count)
		return;
	entry = &model[random_below((uint32_t)model_count)];
	if (random_below(2)) {
		fill(data, entry->seed, entry->size, size);
		ret = bm_writer_extend(device->writer, TREE, &entry->key, data, size, &fault);
		if (entry->size + size + 25 > device->nodesize - 101) {
			CHECK(ret == BM_ERRNO && fault.found == EOVERFLOW);
			return;
		}
		CHECK(ret == 0);
		entry->size += size;
	} else if (entry->size >= size) {
		int from_end = (int)random_below(2);

		CHECK(bm_writer_truncate(device->writer, TREE, &entry->key, size, from_end,
					 &fault) == 0);
		if (from_end)
			entry->seed = (uint8_t)(entry->seed + entry->size - size);
		entry->size = size;
	}
}

static void duplicate(struct device *device)
{
	struct bm_fault fault = {0};
	struct entry entry;
	size_t place;

	if (!model_count || model_count == MAX_ITEMS)
		return;
	place = random_below((uint32_t)model_count);
	entry = model[place];
	if (2 * entry.size + 50 > device->nodesize - 101)
		return;
	entry.key.offset++;
	if (known(place + 1, &entry.key)) {
		CHECK(bm_writer_duplicate(device->writer, TREE, &model[place].key, &entry.key,
					  &fault) == BM_ERRNO);
		return;
	}
	CHECK(bm_writer_duplicate(device->writer, TREE, &model[place].key, &entry.key, &fault) ==
	      0);
	model_insert(place + 1, entry);
}

/* From one neighbour of the key to the other, and a little too far. */
static void set_key(struct device *device)
{
	struct bm_fault fault = {0};
	struct bm_key to;
	size_t place;
	int good;

	if (!model_count)
		return;
	place = random_below((uint32_t)model_count);
	to = model[place].key;
	to.offset += random_below(5) - 2ull;
	good = (!place || compare(&model[place - 1].key, &to) < 0) &&
	       (place + 1 == model_count || compare(&to, &model[place + 1].key) < 0);
	CHECK((bm_writer_set_key(device->writer, TREE, &model[place].key, &to, &fault) == 0) ==
	      good);
	if (good)
		model[place].key = to;
}

static void commit(struct device *device)
{
	struct bm_fault fault = {0};

	CHECK(bm_writer_write_blocks(device->writer, &fault) >= 0);
	CHECK(bm_writer_unpin(device->writer, &fault) == 0);
	bm_writer_set_transid(device->writer, ++device->transid);
}

static void change(struct device *device, uint32_t growth)
{
	uint32_t what = random_below(100);

	if (what < growth)
		insert(device);
	else if (what < growth + 5)
		insert_run(device);
	else if (what < 80)
		delete (device);
	else if (what < 95)
		resize(device);
	else if (what < 97)
		duplicate(device);
	else
		set_key(device);
}

/* ------------------------------------------------------------------------------------ judging -- */

static void check_items(const struct device *device)
{
	static uint64_t objectid[MAX_ITEMS], offset[MAX_ITEMS], block[MAX_ITEMS],
	    position[MAX_ITEMS];
	static uint32_t size[MAX_ITEMS];
	static uint16_t slot[MAX_ITEMS];
	static uint8_t type[MAX_ITEMS];
	struct bm_columns columns = {objectid, type, offset, block, slot, position, size};
	struct bm_fault fault = {0};
	uint8_t wanted[65536];
	struct bm_root root;
	int64_t count;
	int wrong = 0;

	CHECK(bm_writer_root(device->writer, TREE, &root, &fault) == 0);
	count = bm_scan(&root, &lowest, &highest, &columns, MAX_ITEMS, &fault);
	CHECK(count == (int64_t)model_count);
	for (size_t i = 0; i < model_count && count == (int64_t)model_count; i++) {
		struct bm_key key = {objectid[i], offset[i], type[i]};

		fill(wanted, model[i].seed, 0, model[i].size);
		wrong += compare(&key, &model[i].key) || size[i] != model[i].size ||
			 memcmp(device->memory + position[i], wanted, size[i]) != 0;
	}
	CHECK(wrong == 0);
}

/* Every block of the tree; with `written` both copies as a device has them. */
static void check_blocks(const struct device *device, int written)
{
	static struct bm_block blocks[2 * MAX_ITEMS];
	struct bm_writer_tree tree;
	struct bm_fault fault = {0};
	struct bm_root root;
	int64_t count;

	CHECK(bm_writer_root(device->writer, TREE, &root, &fault) == 0);
	CHECK(bm_writer_get_tree(device->writer, TREE, &tree, &fault) == 0);
	count = bm_walk_blocks(&root, 0, blocks, 2 * MAX_ITEMS, &fault);
	CHECK(count > 0 && (uint64_t)count * device->nodesize == tree.bytes_used);
	for (int64_t i = 0; i < count; i++) {
		struct bm_expect expect = {TREE, blocks[i].generation, blocks[i].level};

		CHECK(!blocks[i].parent || blocks[i].nritems >= 1u + (blocks[i].level > 0));
		for (int copy = 0; written && copy < 2; copy++)
			CHECK(bm_image_verify_copy(device->image, blocks[i].logical, copy, &expect,
						   &fault) == 0);
	}
}

static void test_random(uint32_t nodesize, uint32_t seed, int steps)
{
	struct device device = create(nodesize);

	random_state = seed;
	model_count = 0;
	for (int step = 0; step < steps; step++) {
		change(&device, step < steps * 3 / 4 ? 60 : 15);
		if (step % 100 == 0) {
			check_items(&device);
			check_blocks(&device, 0);
		}
		if (step % 500 == 499) {
			commit(&device);
			check_blocks(&device, 1);
		}
	}
	while (model_count)
		delete (&device);
	check_items(&device);
	check_blocks(&device, 0);
	stop(&device);
	free(device.memory);
}

/* What the caller gets wrong is refused, and changes nothing. */
static void test_refusals(void)
{
	struct device device = create(4096);
	struct bm_key keys[2] = {{1, 0, 1}, {1, 5, 1}}, between = {1, 3, 1}, none = {9, 9, 9};
	uint32_t sizes[2] = {10, 10}, large = 4096 - 101 - 24, size = 1;
	uint8_t data[4096] = {0};
	struct bm_fault fault;

	model_count = 0;
	CHECK(bm_writer_insert(device.writer, TREE + 1, keys, sizes, 1, data, &fault) ==
	      BM_NOT_FOUND);
	CHECK(bm_writer_insert(device.writer, TREE, keys, &large, 1, data, &fault) == BM_ERRNO &&
	      fault.found == EOVERFLOW);
	CHECK(bm_writer_insert_each(device.writer, TREE, keys, &large, 1, data, &fault) ==
		  BM_ERRNO &&
	      fault.found == EOVERFLOW);
	CHECK(bm_writer_insert(device.writer, TREE, &between, &size, 1, data, &fault) == 0);
	CHECK(bm_writer_insert(device.writer, TREE, keys, sizes, 2, data, &fault) == BM_ERRNO &&
	      fault.found == EINVAL);
	CHECK(bm_writer_update(device.writer, TREE, &between, 1, data, 1, &fault) == BM_ERRNO &&
	      fault.found == EINVAL);
	CHECK(bm_writer_update(device.writer, TREE, &none, 0, data, 1, &fault) == BM_ERRNO &&
	      fault.found == ENOENT);
	CHECK(bm_writer_extend(device.writer, TREE, &none, data, 1, &fault) == BM_ERRNO &&
	      fault.found == ENOENT);
	CHECK(bm_writer_extend(device.writer, TREE, &between, data, large, &fault) == BM_ERRNO &&
	      fault.found == EOVERFLOW);
	CHECK(bm_writer_truncate(device.writer, TREE, &between, 2, 0, &fault) == BM_ERRNO &&
	      fault.found == EINVAL);
	CHECK(bm_writer_delete(device.writer, TREE, &none, &none, 0, &fault) == 0);
	CHECK(bm_writer_new_tree(device.writer, TREE, TREE, 0, &fault) == BM_ERRNO &&
	      fault.found == EEXIST);
	model_insert(0, (struct entry){between, 1, 0});
	check_items(&device);
	stop(&device);
	free(device.memory);
}

/* ------------------------------------------------------------------------------------- damage -- */

/* Overwrite a few bytes of blocks of the first copy and make their checksums good again. */
static void damage(struct device *device, const struct bm_writer_tree *tree)
{
	for (int i = 0; i < 3; i++) {
		uint64_t at = random_below(2) ? tree->bytenr - LOGICAL
					      : random_below(LENGTH / 64 / device->nodesize) *
						    (uint64_t)device->nodesize;
		uint8_t *block = device->memory + at;
		uint32_t byte = 32 + random_below(random_below(2) ? 400 : device->nodesize - 32);

		block[byte] = (uint8_t)random_below(256);
		memset(block, 0, 32);
		bm_csum(0, block + 32, device->nodesize - 32, block);
	}
}

/* The faults are not looked at: what counts is what AddressSanitizer says. */
static void test_damage(uint32_t nodesize, int cases)
{
	struct device device = create(nodesize);
	struct bm_writer_tree tree;
	struct bm_fault fault = {0};
	uint8_t *sound = malloc(LENGTH), data[MAX_SIZE] = {0};

	random_state = 77;
	model_count = 0;
	while (model_count < MAX_ITEMS / 2)
		insert(&device);
	commit(&device);
	CHECK(bm_writer_get_tree(device.writer, TREE, &tree, &fault) == 0);
	memcpy(sound, device.memory, LENGTH);
	stop(&device);
	for (int i = 0; i < cases; i++) {
		memcpy(device.memory, sound, LENGTH);
		memset(device.memory + LENGTH, 0, LENGTH);
		damage(&device, &tree);
		start(&device);
		bm_writer_occupy(device.writer, &(uint64_t){LOGICAL}, &(uint64_t){LENGTH / 2}, 1, 1,
				 &fault);
		bm_writer_set_tree(device.writer, &tree, &fault);
		for (int step = 0; step < 60; step++) {
			struct bm_key key = random_key(), end = random_key();
			uint32_t size = random_below(MAX_SIZE);

			bm_writer_insert_each(device.writer, TREE, &key, &size, 1, data, &fault);
			bm_writer_delete(device.writer, TREE, &key, &end, step & 1, &fault);
			bm_writer_extend(device.writer, TREE, &end, data, size, &fault);
			bm_writer_truncate(device.writer, TREE, &end, size / 2, step & 1, &fault);
		}
		stop(&device);
	}
	free(sound);
	free(device.memory);
}

int main(void)
{
	test_refusals();
	test_random(4096, 1, 6000);
	test_random(4096, 2, 6000);
	test_random(16384, 3, 6000);
	test_damage(4096, 200);
	return finish("writer");
}
