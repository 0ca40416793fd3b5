// SPDX-License-Identifier: GPL-2.0-only
/* No memory for what reads an image. */
#include "faults/faults.h"

#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define MAX_ITEMS 100000
#include "item_table.h"
#define MAX_FILES 12
#define MAX_VOLUMES 4
#define MAX_EXTENTS 24
#define FIRST_FREE 256

static struct packed_image packed;
static const char *image_path;

struct stage {
	struct bm_image *image;
	struct bm_root roots[256];
	size_t count;
	struct bm_forest *forest;
	struct bm_known *known;
	struct bm_extent_maps *maps[MAX_VOLUMES][MAX_FILES]; /* of each inode */
};

void reading_load(const char *path)
{
	image_path = path;
	packed_image_load(&packed, path);
}

void reading_unload(void)
{
	packed_image_free(&packed);
}

/* ------------------------------------------------------------------------------------- stage -- */

static void *open_image(void)
{
	struct stage *stage = calloc(1, sizeof(*stage));

	if (!stage)
		broken("no memory");
	stage->image = packed_image_open(&packed);
	stage->count = packed.root_count;
	memcpy(stage->roots, packed.roots, stage->count * sizeof(*stage->roots));
	for (size_t i = 0; i < stage->count; i++)
		stage->roots[i].image = stage->image;
	return stage;
}

static void *open_forest(void)
{
	struct stage *stage = open_image();
	struct bm_fault fault;

	stage->forest = bm_forest_create(stage->image, stage->roots, stage->count, &fault);
	stage->known = bm_known_create();
	if (!stage->forest || !stage->known)
		broken("no forest");
	for (int i = 0; i < MAX_VOLUMES * MAX_FILES; i++)
		if (!(stage->maps[i / MAX_FILES][i % MAX_FILES] = bm_extent_maps_create(&fault)))
			broken("no extent maps");
	return stage;
}

static void close_stage(void *context)
{
	struct stage *stage = context;

	for (int i = 0; i < MAX_VOLUMES * MAX_FILES && stage->maps[i / MAX_FILES][i % MAX_FILES];
	     i++)
		bm_extent_maps_destroy(stage->maps[i / MAX_FILES][i % MAX_FILES]);
	bm_known_destroy(stage->known);
	if (stage->forest)
		bm_forest_destroy(stage->forest);
	bm_image_destroy(stage->image);
	free(stage);
}

static int is_volume(const struct bm_root *root)
{
	return root->objectid == 5 ||
	       (root->objectid >= FIRST_FREE && root->objectid < UINT64_MAX - FIRST_FREE);
}

/* ------------------------------------------------------------------------------------- image -- */

static void *open_nothing(void)
{
	return &packed;
}

static void close_nothing(void *stage)
{
	(void)stage;
}

/* Two devices, one of them missing; the chunks' stripes name device 0, which is the first. */
static int64_t set_up(struct bm_image *image, struct answer *answer, struct bm_fault *fault)
{
	const struct bm_member devices[] = {{0, 0, packed.size}, {1, 0, 0}};
	const struct bm_expect expect = {.level = -1};
	struct bm_root root = packed.roots[1];
	int64_t ret;

	root.image = image;
	if ((ret = bm_image_set_devices(image, devices, 2, fault)) < 0)
		return ret;
	if ((ret = bm_image_set_chunks(image, packed.chunks, packed.count, fault)) < 0)
		return ret;
	if (!bm_image_block(image, root.bytenr, &expect, fault))
		return fault->code;
	ret = bm_scan(&root, &lowest, &highest, &columns, MAX_ITEMS, fault);
	add_number(answer, (uint64_t)ret);
	return ret;
}

static int64_t run_image(void *stage, struct answer *answer, struct bm_fault *fault)
{
	struct bm_image *image = bm_image_create(packed.memory, packed.size, packed.nodesize,
						 packed.sectorsize, packed.csum_type, packed.fsid);
	int64_t ret;

	(void)stage;
	if (!image)
		return fault->code = BM_NOMEM;
	ret = set_up(image, answer, fault);
	bm_image_destroy(image);
	return ret;
}

/* A file of the disk, mapped, with tree blocks of its own. */
static int64_t map_image(int file, off_t size, struct answer *answer, struct bm_fault *fault)
{
	const uint64_t room =
	    ((uint64_t)size + BM_DEVICE_ALIGN) / BM_DEVICE_ALIGN * BM_DEVICE_ALIGN;
	const struct bm_file from = {.file = file, .size = (uint64_t)size};
	const uint8_t *base = bm_map_files(&from, 1, room, fault);
	struct bm_image *image;
	uint8_t *blocks;
	int64_t ret;

	if (!base)
		return fault->code;
	add_bytes(answer, base + 65536, 4096);
	image = bm_image_create(base, room, packed.nodesize, packed.sectorsize, packed.csum_type,
				packed.fsid);
	blocks = aligned_alloc(4096, 1 << 20);
	ret = image && blocks ? BM_OK : (fault->code = BM_NOMEM);
	if (ret == BM_OK)
		ret = bm_image_copy_blocks(image, blocks, 1 << 20, fault);
	bm_image_destroy(image);
	free(blocks);
	bm_unmap_files(base);
	return ret;
}

static int64_t run_mapping(void *stage, struct answer *answer, struct bm_fault *fault)
{
	int file = open(image_path, O_RDONLY);
	int64_t ret;

	(void)stage;
	if (file < 0)
		broken(image_path);
	ret = map_image(file, lseek(file, 0, SEEK_END), answer, fault);
	close(file);
	return ret;
}

/* ------------------------------------------------------------------------------------- trees -- */

static int64_t scan_tree(const struct bm_root *root, struct answer *answer, struct bm_fault *fault)
{
	int64_t count = bm_scan(root, &lowest, &highest, &columns, MAX_ITEMS, fault);

	for (int64_t i = 0; i < count; i++) {
		add_number(answer, table.objectid[i]);
		add_number(answer, table.offset[i]);
		add_number(answer, table.position[i]);
	}
	return count;
}

static int64_t sum_inodes(const struct bm_root *root, struct answer *answer, struct bm_fault *fault)
{
	static struct bm_inode_sum inodes[MAX_ITEMS];
	static struct bm_file_extent extents[MAX_ITEMS];
	static struct bm_entry entries[MAX_ITEMS];
	static struct bm_block blocks[4096];
	const struct bm_inode_rows rows = {inodes, extents, entries, MAX_ITEMS};
	static uint64_t leaves[4096];
	struct bm_reduce ask = {.leaves = leaves, .high = UINT64_MAX, .root_dir = FIRST_FREE};
	struct bm_inode_totals totals = {0};
	int64_t count = bm_walk_blocks(root, 0, blocks, 4096, fault);
	int ret;

	if (count < 0 || count > 4096)
		return count;
	for (int64_t i = 0; i < count; i++)
		if (!blocks[i].level)
			leaves[ask.count++] = blocks[i].logical;
	ret = bm_reduce_inodes(root->image, &ask, &rows, &totals, fault);
	if (ret >= 0)
		add_bytes(answer, &totals, sizeof(totals));
	return ret;
}

static int64_t compare(const struct bm_root *left, const struct bm_root *right,
		       struct answer *answer, struct bm_fault *fault)
{
	static struct bm_difference differences[512];
	struct bm_compare *walk = bm_compare_create(left, right, fault);
	int64_t found;

	if (!walk)
		return fault->code;
	while ((found = bm_compare_next(walk, differences, 512, fault)) > 0)
		for (int64_t i = 0; i < found; i++) {
			add_number(answer, differences[i].key.objectid);
			add_number(answer, (uint64_t)differences[i].change);
		}
	bm_compare_destroy(walk);
	return found;
}

static int64_t run_trees(void *context, struct answer *answer, struct bm_fault *fault)
{
	struct stage *stage = context;
	int64_t ret = 0;

	for (size_t i = 0; i < stage->count && ret >= 0; i++) {
		const struct bm_root *root = &stage->roots[i];

		ret = scan_tree(root, answer, fault);
		if (ret >= 0 && is_volume(root))
			ret = sum_inodes(root, answer, fault);
		if (ret >= 0 && i)
			ret = compare(root, root - 1, answer, fault);
	}
	return ret;
}

/* Copies that lie in pieces, and verifying of copies. */
static int64_t run_copies(void *context, struct answer *answer, struct bm_fault *fault)
{
	struct stage *stage = context;
	int64_t ret = 0;

	for (size_t i = 0; i < packed.count && ret >= 0; i++) {
		const struct bm_wanted_block wanted = {.logical = packed.chunks[i].logical,
						       .level = -1};
		uint8_t bytes[4096];

		ret = bm_image_read(stage->image, wanted.logical, 0, sizeof(bytes), bytes, fault);
		if (ret < 0)
			break;
		add_bytes(answer, bytes, sizeof(bytes));
		if (bm_verify_blocks(stage->image, &wanted, 1, 0, fault))
			ret = fault->code;
	}
	return ret;
}

/* What a cold kernel reads. */
static int64_t run_cold(void *context, struct answer *answer, struct bm_fault *fault)
{
	struct stage *stage = context;
	const struct bm_read *reads;
	size_t count;
	int64_t ret = bm_image_cache_start(stage->image, NULL, 0, fault);

	for (size_t i = 0; i < stage->count && ret >= 0; i++)
		ret = bm_visit_leaves(&stage->roots[i], &lowest, &highest, (int32_t)(i % 4), fault);
	for (size_t i = 1; i < stage->count && ret >= 0; i++)
		ret = compare(&stage->roots[i], &stage->roots[i - 1], answer, fault);
	if (ret >= 0) {
		reads = bm_image_cache_reads(stage->image, &count);
		add_number(answer, count);
		for (size_t i = 0; i < count; i++)
			add_number(answer, reads[i].logical + reads[i].used_at);
	}
	bm_image_cache_stop(stage->image);
	return ret;
}

/* --------------------------------------------------------------------------- back references -- */

/* Addresses of extents of data, and of tree blocks (`blocks`). */
static size_t find_extents(const struct stage *stage, uint64_t *found, int blocks)
{
	const struct bm_root *root = bm_forest_root(stage->forest, 2);
	struct bm_fault fault;
	int64_t count = bm_scan(root, &lowest, &highest, &columns, MAX_ITEMS, &fault);
	size_t kept = 0;

	for (int64_t i = 0; i < count && kept < MAX_EXTENTS; i++)
		if (table.type[i] == (blocks ? BTRFS_METADATA_ITEM_KEY : BTRFS_EXTENT_ITEM_KEY))
			found[kept++] = table.objectid[i];
	return kept;
}

static int64_t walk_extent(const struct bm_backref_walk *walk, struct answer *answer,
			   struct bm_fault *fault)
{
	struct bm_inode_refs refs = {0};
	uint64_t found[64];
	int64_t ret = bm_collect_inode_refs(walk, &refs, fault);

	if (ret >= 0)
		add_bytes(answer, refs.rows, refs.count * sizeof(*refs.rows));
	bm_inode_refs_free(&refs);
	if (ret < 0)
		return ret;
	if ((ret = bm_find_all_leafs(walk, found, 64, fault)) < 0)
		return ret;
	add_bytes(answer, found, (size_t)(ret < 64 ? ret : 64) * sizeof(*found));
	if ((ret = bm_find_all_roots(walk, found, 64, fault)) < 0)
		return ret;
	add_bytes(answer, found, (size_t)(ret < 64 ? ret : 64) * sizeof(*found));
	return ret;
}

static int64_t run_backrefs(void *context, struct answer *answer, struct bm_fault *fault)
{
	struct stage *stage = context;
	uint64_t extents[MAX_EXTENTS];
	struct bm_backref_walk walk = {
	    .forest = stage->forest, .ignore_extent_item_pos = 1, .known = stage->known};
	const size_t count = find_extents(stage, extents, 0);
	int64_t ret = 0;

	for (size_t i = 0; i < count && ret >= 0; i++) {
		walk.bytenr = extents[i];
		walk.behaviour = i & 1 ? ~0ull : 0;
		ret = walk_extent(&walk, answer, fault);
	}
	return ret;
}

static int64_t run_account(void *context, struct answer *answer, struct bm_fault *fault)
{
	struct stage *stage = context;
	uint64_t extents[MAX_EXTENTS], sizes[MAX_EXTENTS];
	struct bm_account account = {0};
	const size_t count = find_extents(stage, extents, 0);
	int64_t ret;

	for (size_t i = 0; i < count; i++)
		sizes[i] = 4096;
	ret = bm_account_extents(NULL, stage->forest, extents, sizes, count, &account, fault);
	for (size_t i = 0; ret >= 0 && i < account.row_count; i++)
		add_number(answer, account.rows[i].now + account.rows[i].bytes);
	bm_account_free(&account);
	return ret;
}

static int64_t run_forest(void *context, struct answer *answer, struct bm_fault *fault)
{
	struct stage *stage = context;
	const struct bm_waiting_ref waiting = {
	    .bytenr = 1 << 20, .value = 5, .ino = 257, .count = 1, .type = 178, .level = -1};
	struct bm_forest *forest =
	    bm_forest_create(stage->image, stage->roots, stage->count, fault);
	struct bm_known *known = bm_known_create();
	int64_t ret = forest ? BM_OK : fault->code;

	if (ret == BM_OK && !known)
		ret = fault->code = BM_NOMEM;
	if (ret == BM_OK)
		ret = bm_forest_set_waiting(forest, &waiting, 1, fault);
	if (ret == BM_OK)
		add_number(answer, bm_forest_root(forest, 5)->bytenr);
	bm_known_destroy(known);
	if (forest)
		bm_forest_destroy(forest);
	return ret;
}

/* ------------------------------------------------------------------------------------ FIEMAP -- */

static size_t find_files(const struct bm_root *root, uint64_t *inos)
{
	const struct bm_key first = {.objectid = FIRST_FREE + 1};
	struct bm_fault fault;
	int64_t count = bm_scan(root, &first, &highest, &columns, MAX_ITEMS, &fault);
	size_t found = 0;

	for (int64_t i = 0; i < count && found < MAX_FILES; i++)
		if (table.type[i] == BTRFS_EXTENT_DATA_KEY &&
		    (!found || inos[found - 1] != table.objectid[i]))
			inos[found++] = table.objectid[i];
	return found;
}

static int64_t map_file(const struct bm_fiemap_args *args, struct answer *answer,
			struct bm_fault *fault)
{
	struct bm_fiemap_result result = {0};
	int64_t ret = bm_fiemap(args, &result, fault);

	if (ret >= 0)
		add_bytes(answer, result.rows, result.count * sizeof(*result.rows));
	bm_fiemap_result_free(&result);
	return ret;
}

/* Each file twice: by its items, as kernels from 6.1 on, and by extent maps, as those before. */
static int64_t map_files(const struct stage *stage, const struct bm_root *root, size_t volume,
			 struct answer *answer, struct bm_fault *fault)
{
	uint64_t inos[MAX_FILES];
	const size_t files = find_files(root, inos);
	int64_t ret = 0;

	for (size_t n = 0; n < 2 * files && ret >= 0; n++) {
		const struct bm_fiemap_args args = {.forest = stage->forest,
						    .maps = stage->maps[volume][n / 2],
						    .subvolume = root->objectid,
						    .ino = inos[n / 2],
						    .isize = 1 << 20,
						    .length = UINT64_MAX / 2,
						    .behaviour = n & 1 ? ~0ull : 0,
						    .extents_per_call = 3,
						    .entries = 4,
						    .prev_extents = 8};

		ret = map_file(&args, answer, fault);
	}
	return ret;
}

static int64_t run_fiemap(void *context, struct answer *answer, struct bm_fault *fault)
{
	struct stage *stage = context;
	size_t volumes = 0;
	int64_t ret = 0;

	for (size_t i = 0; i < stage->count && ret >= 0 && volumes < MAX_VOLUMES; i++)
		if (is_volume(&stage->roots[i]))
			ret = map_files(stage, &stage->roots[i], volumes++, answer, fault);
	return ret;
}

static int64_t run_maps(void *context, struct answer *answer, struct bm_fault *fault)
{
	struct bm_extent_maps *maps = bm_extent_maps_create(fault);

	(void)context;
	add_number(answer, 1);
	if (!maps)
		return fault->code;
	bm_extent_maps_destroy(maps);
	return BM_OK;
}

/* -------------------------------------------------------------------------------------- send -- */

static int take(void *context, const uint8_t *data, size_t size)
{
	add_bytes(context, data, size);
	return 0;
}

static int inflate(void *context, int compression, const uint8_t *data, size_t size, uint8_t *out,
		   size_t out_size)
{
	(void)context;
	(void)data;
	memset(out, compression + (int)size, out_size);
	return BM_OK;
}

static int64_t send_volume(struct bm_send_args *args, struct answer *answer, struct bm_fault *fault)
{
	struct bm_send_explained explained = {0};
	int64_t ret;

	args->context = answer;
	args->explained = &explained;
	ret = bm_send(args, fault);
	for (size_t i = 0; ret >= 0 && i < explained.count; i++)
		add_number(answer, explained.rows[i].cause);
	bm_send_explained_free(&explained);
	if (ret < 0 || args->parent)
		return ret;
	args->explained = NULL;
	ret = bm_send_reads(args, fault);
	add_number(answer, (uint64_t)ret);
	return ret;
}

/* Whole volumes, and what changed from one to the next; with small caches and with usual ones. */
static int64_t run_send(void *context, struct answer *answer, struct bm_fault *fault)
{
	static const struct bm_send_limits limits[] = {{256, 128, 64, 64, 128, 17, 1024},
						       {4, 2, 2, 2, 2, 2, 2}};
	static const uint32_t flags[] = {0, BM_SEND_NO_FILE_DATA, BM_SEND_COMPRESSED};
	struct stage *stage = context;
	struct bm_send_root volumes[256] = {0};
	uint64_t commands[BM_SEND_COMMANDS];
	struct bm_send_args args = {.forest = stage->forest,
				    .clone_roots = volumes,
				    .commands = commands,
				    .write = take,
				    .decompress = inflate};
	int64_t ret = 0;

	for (size_t i = 0; i < stage->count; i++)
		if (stage->roots[i].objectid >= FIRST_FREE && is_volume(&stage->roots[i]))
			volumes[args.clone_root_count++].objectid = stage->roots[i].objectid;
	for (size_t i = 0; i < 2 * args.clone_root_count && ret >= 0; i++) {
		const size_t which = i / 2;

		args.send_root = volumes[which].objectid;
		args.parent =
		    i & 1 ? &volumes[which ? which - 1 : args.clone_root_count - 1] : NULL;
		args.behaviour = which & 1 ? 0 : ~0ull;
		args.limits = limits[which & 1];
		args.flags = flags[which % 3];
		args.proto = 1 + (which % 3 == 2);
		args.known = which & 2 ? stage->known : NULL;
		ret = send_volume(&args, answer, fault);
	}
	return ret;
}

const struct scenario reading[] = {
    {"image", open_nothing, run_image, NULL, close_nothing},
    {"mapped file", open_nothing, run_mapping, NULL, close_nothing},
    {"trees", open_image, run_trees, NULL, close_stage},
    {"copies", open_image, run_copies, NULL, close_stage},
    {"cold cache", open_image, run_cold, NULL, close_stage},
    {"forest", open_image, run_forest, NULL, close_stage},
    {"back references", open_forest, run_backrefs, NULL, close_stage},
    {"quota accounts", open_forest, run_account, NULL, close_stage},
    {"extent maps", open_nothing, run_maps, NULL, close_nothing},
    {"FIEMAP", open_forest, run_fiemap, NULL, close_stage},
    {"send", open_forest, run_send, NULL, close_stage},
};
const size_t reading_count = sizeof(reading) / sizeof(*reading);
