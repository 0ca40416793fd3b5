// SPDX-License-Identifier: GPL-2.0-only
/*
 * Many changes in one call make the tree that the same changes one by one make, leaf by leaf. And
 * in trees with damaged blocks nothing is read or written out of place.
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
#define ALONE 300
#define AT_ONCE 301
#define SOURCE 302
#define METADATA_SINGLE 4
#define MAX_ITEMS 8000
#define DIRECTORY 257

static const uint8_t fsid[16] = "a filesystem id";
static const struct bm_key lowest, highest = {UINT64_MAX, UINT64_MAX, UINT8_MAX};
static uint32_t random_state;

static uint32_t random_below(uint32_t limit)
{
	random_state = random_state * 1664525 + 1013904223;
	return (random_state >> 8) % limit;
}

struct device {
	uint8_t *memory;
	uint32_t nodesize;
	struct bm_image *image;
	struct bm_writer *writer;
};

static void start(struct device *device)
{
	struct bm_stripe stripe = {.offset = 0};
	struct bm_chunk chunk = {.logical = LOGICAL,
				 .length = LENGTH,
				 .type = METADATA_SINGLE,
				 .stripes = &stripe,
				 .num_stripes = 1};
	struct bm_writer_args args = {
	    .base = device->memory, .transid = 9, .features = BM_WRITER_SKINNY_METADATA};
	struct bm_fault fault = {0};

	device->image = bm_image_create(device->memory, LENGTH, device->nodesize, SECTOR, 0, fsid);
	CHECK(bm_image_set_chunks(device->image, &chunk, 1, &fault) == 0);
	args.image = device->image;
	memcpy(args.fsid, fsid, sizeof(fsid));
	device->writer = bm_writer_create(&args, &fault);
	CHECK(device->writer != NULL);
	CHECK(bm_writer_add_group(device->writer, LOGICAL, LENGTH, METADATA_SINGLE, &fault) == 0);
}

static void stop(struct device *device)
{
	bm_writer_destroy(device->writer);
	bm_image_destroy(device->image);
}

static struct device create(uint32_t nodesize)
{
	struct device device = {.memory = calloc(1, LENGTH), .nodesize = nodesize};
	struct bm_fault fault = {0};

	start(&device);
	for (uint64_t tree = ALONE; tree <= SOURCE; tree++)
		CHECK(bm_writer_new_tree(device.writer, tree, tree, 0, &fault) == 0);
	return device;
}

/* -------------------------------------------------------------------------------- comparison -- */

struct rows {
	uint64_t objectid[MAX_ITEMS], offset[MAX_ITEMS], block[MAX_ITEMS], position[MAX_ITEMS];
	uint32_t size[MAX_ITEMS];
	uint16_t slot[MAX_ITEMS];
	uint8_t type[MAX_ITEMS];
	struct bm_columns columns;
	int64_t count;
};

static void scan(const struct device *device, uint64_t tree, struct rows *rows)
{
	struct bm_fault fault = {0};
	struct bm_root root;

	rows->columns = (struct bm_columns){.objectid = rows->objectid,
					    .type = rows->type,
					    .offset = rows->offset,
					    .block = rows->block,
					    .slot = rows->slot,
					    .position = rows->position,
					    .size = rows->size};
	CHECK(bm_writer_root(device->writer, tree, &root, &fault) == 0);
	rows->count = bm_scan(&root, &lowest, &highest, &rows->columns, MAX_ITEMS, &fault);
	CHECK(rows->count >= 0);
}

/* Nodes with as many pointers, leaves with as many items. */
static void check_same_blocks(const struct device *device)
{
	static struct bm_block blocks[2][LENGTH / 4096];
	struct bm_fault fault = {0};
	int64_t counts[2];

	for (int i = 0; i < 2; i++) {
		struct bm_root root;

		CHECK(bm_writer_root(device->writer, i ? AT_ONCE : ALONE, &root, &fault) == 0);
		counts[i] = bm_walk_blocks(&root, 0, blocks[i], LENGTH / 4096, &fault);
	}
	CHECK(counts[0] > 0 && counts[0] == counts[1]);
	for (int64_t i = 0; i < counts[0] && i < counts[1]; i++)
		CHECK(blocks[0][i].level == blocks[1][i].level &&
		      blocks[0][i].nritems == blocks[1][i].nritems);
}

/* The same items at the same places of the same leaves; only the addresses of these differ. */
static void check_same(const struct device *device)
{
	static struct rows a, b;
	size_t differ = 0;

	scan(device, ALONE, &a);
	scan(device, AT_ONCE, &b);
	CHECK(a.count == b.count);
	for (int64_t i = 0; i < a.count && i < b.count; i++)
		differ += a.objectid[i] != b.objectid[i] || a.type[i] != b.type[i] ||
			  a.offset[i] != b.offset[i] || a.slot[i] != b.slot[i] ||
			  a.size[i] != b.size[i] ||
			  a.position[i] % device->nodesize != b.position[i] % device->nodesize ||
			  memcmp(device->memory + a.position[i], device->memory + b.position[i],
				 a.size[i]);
	CHECK(differ == 0);
	check_same_blocks(device);
}

/* ----------------------------------------------------------------------------- mixed changes -- */

#define BATCH 64
#define ENTRY_SIZE (sizeof(struct btrfs_dir_item) + 8)

/* A change that may be refused; entries have few names and fewer hashes. */
static struct bm_writer_change random_change(uint8_t *data)
{
	struct bm_writer_change change = {.kind = (uint8_t)random_below(5)};

	change.key.objectid = 256 + random_below(40);
	if (change.kind == BM_WRITER_INSERT_ENTRY || change.kind == BM_WRITER_DELETE_ENTRY) {
		struct btrfs_dir_item item = {.name_len = 8, .type = 1};
		uint32_t name = random_below(60);
		uint8_t text[8] = {'n', 'a', 'm', 'e'};

		memcpy(text + 4, &name, sizeof(name));
		change.key.type = BTRFS_DIR_ITEM_KEY;
		change.key.offset = name / 2;
		if (change.kind == BM_WRITER_INSERT_ENTRY) {
			change.size = ENTRY_SIZE;
			memcpy(data, &item, sizeof(item));
			memcpy(data + sizeof(item), text, sizeof(text));
		} else {
			change.size = sizeof(text);
			memcpy(data, text, sizeof(text));
		}
		return change;
	}
	/* runs of keys, in order or not */
	change.key.type = (uint8_t)(1 + random_below(2));
	change.key.offset = random_below(30);
	change.size = change.kind == BM_WRITER_DELETE ? 0 : random_below(150);
	memset(data, (int)random_below(256), change.size);
	return change;
}

/* How many changes belong together from here on. */
static size_t group_of(const struct bm_writer_change *changes)
{
	size_t count = 1;

	while (changes[count - 1].more)
		count++;
	return count;
}

static uint64_t size_of(const struct bm_writer_change *changes, size_t count)
{
	uint64_t size = 0;

	for (size_t i = 0; i < count; i++)
		size += changes[i].size;
	return size;
}

/* Apply changes to the one tree in calls of their own, up to the first that is refused. */
static size_t apply_alone(const struct device *device, const struct bm_writer_change *changes,
			  size_t count, const uint8_t *data, struct bm_fault *fault)
{
	size_t done = 0;

	while (done < count) {
		size_t group = group_of(changes + done);
		uint64_t size = size_of(changes + done, group);

		if (bm_writer_apply(device->writer, ALONE, changes + done, group, data, size,
				    fault) < (int64_t)group)
			break;
		data += size;
		done += group;
	}
	return done;
}

static void apply_batch(const struct device *device, const struct bm_writer_change *changes,
			const uint8_t *data)
{
	size_t at = 0;

	while (at < BATCH) {
		struct bm_fault alone = {0}, together = {0};
		const size_t left = BATCH - at;
		size_t done = apply_alone(device, changes + at, left, data, &alone);

		CHECK(bm_writer_apply(device->writer, AT_ONCE, changes + at, left, data,
				      size_of(changes + at, left), &together) == (int64_t)done);
		CHECK(alone.code == together.code && alone.found == together.found);
		/* go on behind the one that was refused */
		if (done < left)
			done += group_of(changes + at + done);
		data += size_of(changes + at, done);
		at += done;
	}
}

static void test_apply(uint32_t nodesize, uint32_t seed)
{
	struct device device = create(nodesize);

	random_state = seed;
	for (int batch = 0; batch < 200; batch++) {
		struct bm_writer_change changes[BATCH];
		uint8_t data[BATCH * 200];
		uint64_t size = 0;

		for (int i = 0; i < BATCH; i++) {
			changes[i] = random_change(data + size);
			size += changes[i].size;
			/* side by side, most of them: the next key, or any other */
			if (i && changes[i].kind == BM_WRITER_INSERT && random_below(2) &&
			    changes[i - 1].kind == BM_WRITER_INSERT) {
				changes[i - 1].more = 1;
				changes[i].key = changes[i - 1].key;
				changes[i].key.offset += 1 + random_below(3);
			}
		}
		apply_batch(&device, changes, data);
		if (batch % 20 == 0)
			check_same(&device);
	}
	check_same(&device);
	stop(&device);
	free(device.memory);
}

/* Nodes are split ahead of time on the way to an insertion, whether its leaf is known or not. */
static void test_full_nodes(size_t count)
{
	struct device device = create(4096);
	static uint8_t data[400 * 1200];
	struct bm_key keys[400] = {0};
	struct bm_fault fault = {0};
	uint32_t sizes[400];

	for (size_t i = 0; i < count; i++) {
		keys[i].objectid = 256 + i;
		sizes[i] = 1200;
	}
	CHECK(bm_writer_insert_each(device.writer, AT_ONCE, keys, sizes, count, data, &fault) == 0);
	for (size_t i = 0; i < count; i++)
		CHECK(bm_writer_insert(device.writer, ALONE, &keys[i], &sizes[i], 1, data,
				       &fault) == 0);
	check_same(&device);
	stop(&device);
	free(device.memory);
}

/* ----------------------------------------------------------------------------- logs of files -- */

/* New files as create() makes them, some with other items between their two. */
static void make_files(const struct device *device, uint32_t count)
{
	struct bm_fault fault = {0};

	for (uint64_t ino = 300; ino < 300 + count; ino++) {
		struct bm_key keys[2] = {
		    {.objectid = ino, .type = BTRFS_INODE_ITEM_KEY},
		    {.objectid = ino, .type = BTRFS_INODE_REF_KEY, .offset = DIRECTORY}};
		uint32_t sizes[2] = {sizeof(struct btrfs_inode_item), 11 + random_below(240)};
		uint8_t data[160 + 256];

		memset(data, (int)random_below(256), sizeof(data));
		CHECK(bm_writer_insert(device->writer, SOURCE, keys, sizes, 2, data, &fault) == 0);
	}
}

static void log_alone(const struct device *device, const struct rows *rows, uint64_t row)
{
	struct btrfs_inode_item item;
	struct bm_fault fault = {0};
	struct bm_key keys[2];
	uint8_t data[160 + 256];
	int together = rows->block[row] == rows->block[row + 1];

	memcpy(&item, device->memory + rows->position[row], sizeof(item));
	item.generation = item.size = item.nbytes = item.block_group = 0;
	item.transid = 9;
	memcpy(data, &item, sizeof(item));
	memcpy(data + sizeof(item), device->memory + rows->position[row + 1], rows->size[row + 1]);
	for (int i = 0; i < 2; i++)
		keys[i] = (struct bm_key){.objectid = rows->objectid[row + (uint64_t)i],
					  .type = rows->type[row + (uint64_t)i],
					  .offset = rows->offset[row + (uint64_t)i]};
	CHECK(bm_writer_insert(device->writer, ALONE, keys, &rows->size[row], together ? 2 : 1,
			       data, &fault) == 0);
	if (!together)
		CHECK(bm_writer_insert(device->writer, ALONE, keys + 1, &rows->size[row + 1], 1,
				       data + sizeof(item), &fault) == 0);
}

static void test_log_files(uint32_t nodesize, uint32_t seed, uint32_t count, int in_order)
{
	struct device device = create(nodesize);
	static struct rows rows;
	struct bm_fault fault = {0};
	uint64_t *order = calloc(count + 1, sizeof(*order));

	random_state = seed;
	make_files(&device, count);
	scan(&device, SOURCE, &rows);
	CHECK(rows.count == 2 * (int64_t)count);
	for (uint32_t i = 0; i < count; i++) {
		uint32_t other = in_order ? i : random_below(i + 1);

		order[i] = order[other];
		order[other] = 2 * i;
	}
	/* the last one is no row: those before it are logged all the same */
	order[count] = random_below(2) ? (uint64_t)rows.count - 1 : UINT64_MAX;
	CHECK(bm_writer_log_files(device.writer, AT_ONCE, &rows.columns, (size_t)rows.count, order,
				  count + 1, &fault) == BM_ERRNO);
	CHECK(fault.found == EINVAL);
	for (uint32_t i = 0; i < count; i++)
		log_alone(&device, &rows, order[i]);
	check_same(&device);
	CHECK(bm_writer_write_blocks(device.writer, &fault) > 0);
	check_same(&device);
	/* a payload that lies nowhere, and an item of another kind */
	rows.position[0] = UINT64_MAX - 20;
	order[0] = 0;
	CHECK(bm_writer_log_files(device.writer, AT_ONCE, &rows.columns, (size_t)rows.count, order,
				  1, &fault) == BM_PAST_END);
	CHECK(bm_writer_copy_each(device.writer, AT_ONCE, &rows.columns, 1, &fault) == BM_PAST_END);
	order[0] = 1;
	CHECK(bm_writer_log_files(device.writer, AT_ONCE, &rows.columns, (size_t)rows.count, order,
				  1, &fault) == BM_ERRNO);
	free(order);
	stop(&device);
	free(device.memory);
}

static void test_copy_each(void)
{
	struct device device = create(4096);
	static struct rows rows;
	struct bm_fault fault = {0};

	random_state = 5;
	make_files(&device, 500);
	scan(&device, SOURCE, &rows);
	CHECK(bm_writer_copy_each(device.writer, AT_ONCE, &rows.columns, (size_t)rows.count,
				  &fault) == 0);
	for (int64_t i = 0; i < rows.count; i++) {
		const struct bm_key key = {
		    .objectid = rows.objectid[i], .type = rows.type[i], .offset = rows.offset[i]};

		CHECK(bm_writer_insert(device.writer, ALONE, &key, &rows.size[i], 1,
				       device.memory + rows.position[i], &fault) == 0);
	}
	check_same(&device);
	CHECK(bm_writer_copy_each(device.writer, AT_ONCE, &rows.columns, 1, &fault) == BM_ERRNO);
	CHECK(fault.found == EEXIST);
	stop(&device);
	free(device.memory);
}

/* ------------------------------------------------------------------------------------ damage -- */

static void damage(struct device *device, const struct bm_writer_tree *tree)
{
	for (uint32_t hits = 1 + random_below(5); hits; hits--) {
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
static void test_damage(int cases)
{
	struct device device = create(4096);
	uint8_t *sound = malloc(LENGTH), data[BATCH * 200];
	const uint32_t sizes[8] = {1, 2, 3, 4, 255, 5, 6, 7};
	static struct rows rows;
	struct bm_fault fault = {0};
	struct bm_writer_tree tree;

	random_state = 9;
	make_files(&device, 300);
	scan(&device, SOURCE, &rows);
	CHECK(bm_writer_write_blocks(device.writer, &fault) > 0);
	CHECK(bm_writer_get_tree(device.writer, SOURCE, &tree, &fault) == 0);
	memcpy(sound, device.memory, LENGTH);
	stop(&device);
	for (int i = 0; i < cases; i++) {
		struct bm_writer_change changes[BATCH];
		uint64_t size = 0, order[40], indexes[8];
		struct bm_unlinks unlinks = {.tree = SOURCE,
					     .directory = DIRECTORY,
					     .count = 8,
					     .names = data,
					     .names_size = 40,
					     .name_sizes = sizes};

		memcpy(device.memory, sound, LENGTH);
		damage(&device, &tree);
		start(&device);
		bm_writer_occupy(device.writer, &(uint64_t){LOGICAL}, &(uint64_t){LENGTH / 2}, 1, 1,
				 &fault);
		bm_writer_set_tree(device.writer, &tree, &fault);
		bm_writer_new_tree(device.writer, AT_ONCE, AT_ONCE, 0, &fault);
		for (int n = 0; n < BATCH; n++) {
			changes[n] = random_change(data + size);
			changes[n].key.objectid += random_below(300);
			size += changes[n].size;
		}
		for (int n = 0; n < 40; n++)
			order[n] = random_below((uint32_t)rows.count);
		for (int n = 0; n < BATCH; n++)
			bm_writer_apply(device.writer, SOURCE, changes + n, (size_t)(BATCH - n),
					data, size, &fault);
		bm_writer_log_files(device.writer, AT_ONCE, &rows.columns, (size_t)rows.count,
				    order, 40, &fault);
		bm_writer_log_files(device.writer, SOURCE, &rows.columns, (size_t)rows.count, order,
				    40, &fault);
		bm_writer_unlink_files(device.writer, &unlinks, indexes, &fault);
		stop(&device);
	}
	free(sound);
	free(device.memory);
}

int main(void)
{
	test_apply(4096, 1);
	test_apply(4096, 2);
	test_apply(16384, 3);
	for (size_t count = 340; count < 370; count++)
		test_full_nodes(count);
	test_log_files(4096, 1, 3500, 0);
	test_log_files(4096, 2, 3500, 1);
	test_log_files(16384, 3, 3500, 0);
	test_copy_each();
	test_damage(200);
	return finish("writer_many");
}
