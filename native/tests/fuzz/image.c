// SPDX-License-Identifier: GPL-2.0-only
/*
 * Every kernel that reads trees, on a damaged image.
 *
 * An input is a list of edits to tree blocks of a real image. Edited blocks mostly get a right
 * checksum again, so that the damage is not stopped at the door. Whatever the edits are, each
 * kernel has to come back with a number or a fault; the sanitizers see to the rest.
 *
 * The image is the one that BTRFS_MODEL_FUZZ_IMAGE names. For libFuzzer, and for mutate.c.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "fuzz/edit.h"
#include "image_file.h"

#define MAX_EDITS 40
#define MAX_ITEMS 100000
#include "item_table.h"
#define MAX_EXTENTS 6
#define MAX_STREAM (16u << 20)
#define EXTENT_ITEM 168

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static struct packed_image packed;

/* ------------------------------------------------------------------------------------ edits -- */

/*
 * Damage that passes the checks of the block itself: a pointer of a node leads to another block,
 * whatever its level, with that block's own key and generation; or bytes of one item of a leaf
 * become the next one's, so that both have sizes that no kernel writes.
 */
static void redirect(uint8_t *block, const struct edit *edit)
{
	const struct btrfs_header *header = (const struct btrfs_header *)block;
	uint32_t slot, given;

	if (!header->nritems || header->nritems > 100)
		return;
	slot = edit->place % header->nritems;
	if (header->level) {
		size_t index = (edit->value + (size_t)(edit->place >> 8)) % packed.count;
		const uint8_t *target = packed_image_block(&packed, index);
		struct btrfs_key_ptr *ptr = (struct btrfs_key_ptr *)(block + 101) + slot;

		memcpy(&ptr->key, target + 101, sizeof(ptr->key));
		ptr->blockptr = packed.chunks[index].logical;
		ptr->generation = ((const struct btrfs_header *)target)->generation;
	} else if (slot + 1 < header->nritems) {
		struct btrfs_item *item = (struct btrfs_item *)(block + 101) + slot;

		given = item->size ? 1 + edit->value % item->size : 0;
		item[0].offset += given;
		item[0].size -= given;
		item[1].size += given;
	}
}

static void apply(const struct edit *edit)
{
	uint8_t *block = packed_image_block(&packed, edit->block % packed.count);

	if (edit->how & EXTREME && (edit->how & 3) == IN_ITEMS)
		redirect(block, edit);
	else
		change_bytes(block, packed.nodesize, edited_byte(block, packed.nodesize, edit),
			     edit);
}

/* ------------------------------------------------------------------------------- exercising -- */

/* Names and references in the items that were scanned. */
static void exercise_items(struct bm_image *image, size_t count)
{
	static struct bm_entry entries[4096];
	static struct bm_ref refs[4096];
	static uint8_t rows[4096 * 32];
	static int8_t bad[MAX_ITEMS];

	bm_entries(image, &columns, count, entries, 4096, bad);
	bm_extent_refs(image, &columns, count, refs, 4096, bad);
	bm_gather(image, table.position, table.size, count < 4096 ? count : 4096, 32, rows);
}

static void exercise_inodes(struct bm_image *image, const uint64_t *leaves, size_t count)
{
	static struct bm_inode_sum inodes[MAX_ITEMS];
	static struct bm_file_extent extents[MAX_ITEMS];
	static struct bm_entry roots[MAX_ITEMS];
	const struct bm_inode_rows rows = {inodes, extents, roots, MAX_ITEMS};
	static struct bm_known_leaf known[4096];
	static uint64_t numbers[4096];
	const struct bm_reduce ask = {.leaves = leaves,
				      .count = count,
				      .high = UINT64_MAX,
				      .root_dir = 256,
				      .known = known,
				      .numbers = numbers};
	struct bm_inode_totals totals = {0};
	struct bm_fault fault;

	for (size_t i = 0; i < count; i++) {
		numbers[i] = i;
		known[i].state = BM_LEAF_UNKNOWN;
	}
	bm_reduce_inodes(image, &ask, &rows, &totals, &fault);
	/* as another tree with the same leaves, whatever is in them */
	for (size_t i = 0; i < count; i++)
		known[i].state = BM_LEAF_GOOD;
	bm_reduce_inodes(image, &ask, &rows, &totals, &fault);
}

static void exercise_screen(struct bm_image *image, const uint64_t *leaves, size_t count)
{
	static struct bm_data_extent extents[MAX_ITEMS];
	static uint8_t passes[256], passed[4096];
	static uint16_t tables[4096];
	struct bm_screen screen = {.newest = UINT64_MAX, .passes = passes};
	struct bm_fault fault;

	memset(passes, 1, sizeof(passes));
	memset(screen.most, 0xff, sizeof(screen.most));
	bm_screen_leaves(image, &screen, leaves, tables, count, passed, extents, MAX_ITEMS, &fault);
}

static void exercise_search(const struct bm_root *root, const struct bm_key *key, int reada)
{
	struct bm_path path = {.reada = reada, .restart = reada & 1};
	struct bm_fault fault;

	if (bm_search_slot(root, key, &path, &fault) >= 0)
		for (int i = 0; i < 5 && bm_next_leaf(root, &path, &fault) == 0; i++)
			;
	memset(&path, 0, sizeof(path));
	if (bm_search_slot_for_read(root, key, 0, &path, &fault) == 0)
		for (int i = 0; i < 5 && bm_prev_leaf(root, &path, &fault) == 0; i++)
			;
	memset(&path, 0, sizeof(path));
	path.lowest_level = 1;
	bm_search_slot(root, key, &path, &fault);
	memset(&path, 0, sizeof(path));
	bm_search_slot_for_read(root, key, 1, &path, &fault);
}

static void exercise_tree(const struct bm_root *root, int reada)
{
	static struct bm_block blocks[4096];
	static uint64_t leaves[4096];
	struct bm_fault fault;
	size_t found = 0;
	int64_t count = bm_walk_blocks(root, 0, blocks, 4096, &fault);

	for (int64_t i = 0; i < count && i < 4096; i++)
		if (!blocks[i].level)
			leaves[found++] = blocks[i].logical;
	bm_scan_leaves(root->image, leaves, found, &columns, MAX_ITEMS, &fault);
	exercise_inodes(root->image, leaves, found);
	exercise_screen(root->image, leaves, found);
	bm_scan_bound(root, &lowest, &highest, &fault);
	count = bm_scan(root, &lowest, &highest, &columns, MAX_ITEMS, &fault);
	if (count > 0)
		exercise_items(root->image, (size_t)count);
	exercise_search(root, &lowest, reada);
	exercise_search(root, &highest, reada);
	for (int64_t i = 0; i < count; i += 1 + count / 4) {
		struct bm_key key = {table.objectid[i], table.offset[i] + 1, table.type[i]};

		exercise_search(root, &key, reada);
	}
}

static void exercise_compare(const struct bm_root *left, const struct bm_root *right)
{
	static struct bm_difference differences[512];
	struct bm_fault fault;
	struct bm_compare *compare = bm_compare_create(left, right, &fault);

	while (compare && bm_compare_next(compare, differences, 512, &fault) > 0)
		;
	bm_compare_destroy(compare);
}

static void exercise_backrefs(struct bm_image *image, const struct bm_root *roots, size_t count)
{
	struct bm_backref_walk walk = {.ignore_extent_item_pos = 1};
	struct bm_fault fault;
	struct bm_forest *forest = bm_forest_create(image, roots, count, &fault);
	const struct bm_root *extents = forest ? bm_forest_root(forest, 2) : NULL;
	int64_t found = 0;
	int left = MAX_EXTENTS;

	if (extents)
		found = bm_scan(extents, &lowest, &highest, &columns, MAX_ITEMS, &fault);
	walk.forest = forest;
	for (int64_t i = 0; i < found && left; i++) {
		struct bm_inode_refs refs = {0};
		uint64_t out[16];

		if (table.type[i] != EXTENT_ITEM)
			continue;
		left--;
		walk.bytenr = table.objectid[i];
		walk.behaviour = left & 1 ? ~0ull : 0;
		walk.ignore_extent_item_pos = left & 2;
		bm_collect_inode_refs(&walk, &refs, &fault);
		bm_inode_refs_free(&refs);
		bm_find_all_leafs(&walk, out, 16, &fault);
		bm_find_all_roots(&walk, out, 16, &fault);
	}
	if (extents && found > 0) {
		struct bm_account account;

		for (int64_t i = 0; i < found; i++)
			table.position[i] = 4096;
		bm_account_extents(NULL, forest, table.objectid, table.position, (size_t)found,
				   &account, &fault);
		bm_account_free(&account);
	}
	bm_forest_destroy(forest);
}

static int take(void *context, const uint8_t *data, size_t size)
{
	size_t *left = context;

	(void)data;
	if (size > *left)
		return 1;
	*left -= size;
	return 0;
}

/* One extent in sixteen does not decompress. */
static int inflate(void *context, int compression, const uint8_t *data, size_t size, uint8_t *out,
		   size_t out_size)
{
	unsigned int sum = 0;

	for (size_t i = 0; i < size; i++)
		sum += data[i];
	(void)context;
	memset(out, compression, out_size);
	return sum % 16 ? BM_OK : BM_BAD_DATA;
}

static void exercise_send(struct bm_image *image, const struct bm_root *roots, size_t count)
{
	static const uint32_t flags[] = {0, BM_SEND_NO_FILE_DATA, BM_SEND_COMPRESSED};
	static const struct bm_send_limits limits[] = {{256, 128, 64, 64, 128, 17, 1024},
						       {1, 1, 1, 1, 1, 1, 1}};
	struct bm_send_root volumes[256] = {0};
	uint64_t commands[BM_SEND_COMMANDS];
	struct bm_fault fault;
	struct bm_send_args args = {.forest = bm_forest_create(image, roots, count, &fault),
				    .clone_roots = volumes,
				    .commands = commands,
				    .write = take,
				    .decompress = inflate,
				    .known = bm_known_create()};

	/* root items come in the order of their ids, but for those of negative ids */
	for (size_t i = 0; i < count; i++)
		if (roots[i].objectid >= 256 && roots[i].objectid < UINT64_MAX - 256)
			volumes[args.clone_root_count++].objectid = roots[i].objectid;
	/* each volume whole, and its difference to the one before and to the one behind it */
	for (size_t i = 0; args.forest && i < 3 * args.clone_root_count; i++) {
		struct bm_send_explained explained = {0};
		size_t left = MAX_STREAM, which = i / 3;
		size_t other =
		    (which + (i % 3 == 1 ? 1 : args.clone_root_count - 1)) % args.clone_root_count;

		bm_forest_open((struct bm_forest *)args.forest, volumes[which].objectid);
		args.send_root = volumes[which].objectid;
		args.parent = i % 3 ? &volumes[other] : NULL;
		args.behaviour = which & 1 ? 0 : ~0ull;
		args.limits = limits[which / 2 & 1];
		args.flags = flags[i / 2 % 3];
		args.proto = 1 + (i / 2 % 3 == 2);
		args.context = &left;
		if (!args.parent)
			bm_send_reads(&args, &fault);
		args.explained = &explained;
		bm_send(&args, &fault);
		bm_send_explained_free(&explained);
	}
	bm_known_destroy(args.known);
	bm_forest_destroy((struct bm_forest *)args.forest);
}

static void exercise(int cold)
{
	struct bm_image *image = packed_image_open(&packed);
	struct bm_root roots[256];
	struct bm_fault fault;
	size_t last_volume = 0;

	memcpy(roots, packed.roots, packed.root_count * sizeof(*roots));
	for (size_t i = 0; i < packed.root_count; i++)
		roots[i].image = image;
	if (cold)
		bm_image_cache_start(image, NULL, 0, &fault);
	for (size_t i = 0; i < packed.root_count; i++) {
		exercise_tree(&roots[i], cold ? (int)(i % 4) : 0);
		if (roots[i].objectid != 5 && roots[i].objectid < 256)
			continue;
		exercise_compare(&roots[i], &roots[last_volume ? last_volume : i]);
		last_volume = i;
	}
	exercise_backrefs(image, roots, packed.root_count);
	exercise_send(image, roots, packed.root_count);
	bm_image_destroy(image);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct edit edits[MAX_EDITS];
	size_t count = size / sizeof(*edits);

	if (!packed.memory) {
		const char *path = getenv("BTRFS_MODEL_FUZZ_IMAGE");

		packed_image_load(&packed, path && *path ? path : "BTRFS_MODEL_FUZZ_IMAGE");
	}
	if (count > MAX_EDITS)
		count = MAX_EDITS;
	memcpy(edits, data, count * sizeof(*edits));
	for (size_t i = 0; i < count; i++)
		apply(&edits[i]);
	for (size_t i = 0; i < count; i++)
		if ((edits[i].how & LEAVE_CSUM) != LEAVE_CSUM)
			packed_image_seal(&packed, edits[i].block % packed.count);
	exercise(count && edits[0].how & 0x80);
	for (size_t i = 0; i < count; i++)
		packed_image_reset(&packed, edits[i].block % packed.count);
	return 0;
}
