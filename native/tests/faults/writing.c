// SPDX-License-Identifier: GPL-2.0-only
/*
 * No memory for what changes a filesystem: a transaction of each kind on a committed one. Where it
 * fails the writer goes, what was committed is untouched, and the same transaction comes through when
 * the filesystem is opened again: in a kernel it would be aborted.
 */
#include "faults/faults.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define SECTOR 4096u
#define METADATA 0x1000000ull
#define METADATA_LENGTH (3ull << 20)
#define DATA (METADATA + METADATA_LENGTH)
#define DATA_LENGTH (2ull << 20)
#define DIRECTORY 256
#define FILES 60u
#define NAME 8u
#define VOLUME 256
#define SNAPSHOT 400
#define LOG 500
#define EXTENT_TREE 2
#define MAX_ITEMS 20000
#include "item_table.h"
#define TREES 7
#define CHECKED(call)                                                                              \
	do {                                                                                       \
		if ((call) < 0)                                                                    \
			return fault->code;                                                        \
	} while (0)

static const uint8_t fsid[16] = "a filesystem id";
static const uint64_t ids[TREES] = {2, 7, 10, VOLUME, VOLUME + 1, SNAPSHOT, LOG};

struct stage {
	uint8_t *memory;
	struct bm_image *image;
	struct bm_writer *writer;
	struct bm_writer_tree trees[TREES]; /* as they were committed */
	uint64_t sum;			    /* of their items */
};

/* ---------------------------------------------------------------------------------- mounting -- */

static int make_writer(struct stage *stage, struct bm_fault *fault)
{
	const struct bm_stripe stripes[] = {{.offset = 0}, {.offset = METADATA_LENGTH}};
	const struct bm_chunk chunks[] = {{METADATA, METADATA_LENGTH, 4, stripes, 1, 0},
					  {DATA, DATA_LENGTH, 1, stripes + 1, 1, 0}};
	struct bm_writer_args args = {.base = stage->memory,
				      .transid = 10,
				      .features =
					  BM_WRITER_SKINNY_METADATA | BM_WRITER_FREE_SPACE_TREE};

	memcpy(args.fsid, fsid, sizeof(fsid));
	args.image = stage->image =
	    bm_image_create(stage->memory, METADATA_LENGTH + DATA_LENGTH, SECTOR, SECTOR, 0, fsid);
	if (!stage->image)
		return fault->code = BM_NOMEM;
	CHECKED(bm_image_set_chunks(stage->image, chunks, 2, fault));
	stage->writer = bm_writer_create(&args, fault);
	if (!stage->writer)
		return fault->code;
	for (int i = 0; i < 2; i++)
		CHECKED(bm_writer_add_group(stage->writer, chunks[i].logical, chunks[i].length,
					    chunks[i].type, fault));
	return BM_OK;
}

static void unmount(struct stage *stage)
{
	if (stage->writer)
		bm_writer_destroy(stage->writer);
	bm_image_destroy(stage->image);
	stage->writer = NULL;
	stage->image = NULL;
}

/* The filesystem as it was committed, from its bytes. */
static int mount(struct stage *stage, struct bm_fault *fault)
{
	int64_t count;
	struct bm_root root;

	CHECKED(make_writer(stage, fault));
	for (int i = 0; i < TREES; i++)
		CHECKED(bm_writer_set_tree(stage->writer, &stage->trees[i], fault));
	CHECKED(bm_writer_root(stage->writer, EXTENT_TREE, &root, fault));
	count = bm_scan(&root, &lowest, &highest, &columns, MAX_ITEMS, fault);
	CHECKED(count);
	for (int64_t i = 0; i < count; i++) {
		const int is_block = table.type[i] == BTRFS_METADATA_ITEM_KEY;

		if (!is_block && table.type[i] != BTRFS_EXTENT_ITEM_KEY)
			continue;
		if (is_block)
			table.offset[i] = SECTOR;
		CHECKED(bm_writer_occupy(stage->writer, &table.objectid[i], &table.offset[i], 1, 1,
					 fault));
	}
	return BM_OK;
}

static int64_t sum_trees(const struct stage *stage, struct answer *answer, struct bm_fault *fault)
{
	uint64_t known[64];
	const int64_t count = bm_writer_tree_ids(stage->writer, known, 64);
	struct bm_root root;

	for (int64_t n = 0; n < count; n++) {
		int64_t items;

		CHECKED(bm_writer_root(stage->writer, known[n], &root, fault));
		items = bm_scan(&root, &lowest, &highest, &columns, MAX_ITEMS, fault);
		CHECKED(items);
		for (int64_t i = 0; i < items; i++) {
			add_number(answer, table.objectid[i]);
			add_number(answer, table.offset[i] + table.type[i]);
			add_bytes(answer, stage->memory + table.position[i], table.size[i]);
		}
	}
	return count;
}

static int commit(struct stage *stage, struct bm_fault *fault)
{
	CHECKED(bm_writer_run_refs(stage->writer, fault));
	CHECKED(bm_writer_write_blocks(stage->writer, fault));
	return bm_writer_unpin(stage->writer, fault);
}

/* ------------------------------------------------------------------------------------- files -- */

static void name_files(uint8_t *names, uint32_t *sizes, const char *form, uint32_t count)
{
	char name[NAME + 1];

	for (uint32_t i = 0; i < count; i++) {
		snprintf(name, sizeof(name), form, i);
		memcpy(names + (size_t)NAME * i, name, NAME);
		sizes[i] = NAME;
	}
}

static int make_files(struct stage *stage, const char *form, uint64_t ino, int clones,
		      struct bm_fault *fault)
{
	static uint8_t names[FILES * NAME], entries[FILES * (NAME + sizeof(struct btrfs_dir_item))];
	static uint64_t times[FILES];
	static struct bm_span spans[FILES];
	uint32_t sizes[FILES];
	const struct btrfs_inode_item item = {.generation = 10, .nlink = 1, .mode = 0100644};
	struct bm_cloned_extent extent = {.item = {.generation = 9,
						   .ram_bytes = 3 * SECTOR,
						   .type = BTRFS_FILE_EXTENT_REG,
						   .disk_bytenr = DATA,
						   .disk_num_bytes = 3 * SECTOR,
						   .num_bytes = 3 * SECTOR}};
	struct bm_new_files files = {.tree = VOLUME,
				     .directory = DIRECTORY,
				     .ino = ino,
				     .index = ino,
				     .count = FILES,
				     .sure = FILES,
				     .times = times,
				     .item = (const uint8_t *)&item,
				     .names = names,
				     .names_size = sizeof(names),
				     .name_sizes = sizes};

	for (uint32_t i = 0; i < FILES; i++)
		spans[i] = (struct bm_span){0, 1};
	if (clones) {
		files.extents = &extent;
		files.extents_count = 1;
		files.clones = spans;
	}
	name_files(names, sizes, form, FILES);
	CHECKED(bm_writer_new_files(stage->writer, &files, entries, fault));
	return BM_OK;
}

/* Every other file from `ino` on gets data: some in its item, some in sectors of its own. */
static int write_files(struct stage *stage, uint64_t ino, struct bm_fault *fault)
{
	static const uint8_t data[3 * SECTOR] = {1, 2, 3};
	static struct bm_written_file written[FILES / 2];
	const struct bm_piece small = {data, 100}, large[] = {{data, 5000}, {data, 5000}};
	struct bm_written_files args = {
	    .tree = VOLUME, .file = -1, .files = written, .count = FILES / 2};

	for (uint32_t i = 0; i < FILES / 2; i++)
		written[i] = (struct bm_written_file){.ino = ino + 2 * i,
						      .size = i % 3 ? 10000 : 100,
						      .pieces = i % 3 ? large : &small,
						      .count = i % 3 ? 2 : 1,
						      .in_item = i % 3 == 0};
	CHECKED(bm_writer_write_files(stage->writer, &args, fault));
	return BM_OK;
}

/* ------------------------------------------------------------------------------------- stage -- */

static int fill(struct stage *stage, struct bm_fault *fault)
{
	for (int i = 0; i < TREES; i++)
		if (ids[i] != SNAPSHOT)
			CHECKED(bm_writer_new_tree(stage->writer, ids[i], ids[i],
						   ids[i] == VOLUME || ids[i] == VOLUME + 1,
						   fault));
	CHECKED(bm_writer_free_space_group(stage->writer, METADATA, fault));
	CHECKED(bm_writer_free_space_group(stage->writer, DATA, fault));
	CHECKED(make_files(stage, "file%04u", 300, 0, fault));
	CHECKED(write_files(stage, 300, fault));
	CHECKED(bm_writer_copy_root(stage->writer, VOLUME, SNAPSHOT, fault));
	CHECKED(commit(stage, fault));
	for (int i = 0; i < TREES; i++) {
		CHECKED(bm_writer_get_tree(stage->writer, ids[i], &stage->trees[i], fault));
		stage->trees[i].force_cow = stage->trees[i].dirty = 0;
	}
	return BM_OK;
}

static void must(int ret)
{
	if (ret < 0)
		broken("a filesystem that changes are tried on cannot be made");
}

static void *open_bytes(void)
{
	struct stage *stage = calloc(1, sizeof(*stage));
	struct answer answer = {0};
	struct bm_fault fault = {0};

	if (!stage || !(stage->memory = calloc(1, METADATA_LENGTH + DATA_LENGTH)))
		broken("no memory");
	must(make_writer(stage, &fault));
	bm_writer_set_transid(stage->writer, 9);
	must(fill(stage, &fault));
	unmount(stage);
	must(mount(stage, &fault));
	must((int)sum_trees(stage, &answer, &fault));
	stage->sum = answer.sum;
	unmount(stage);
	return stage;
}

static void *open_mounted(void)
{
	struct stage *stage = open_bytes();
	struct bm_fault fault = {0};

	must(mount(stage, &fault));
	return stage;
}

static int recover_bytes(void *context)
{
	struct stage *stage = context;
	struct answer answer = {0};
	struct bm_fault fault = {0};

	unmount(stage);
	must(mount(stage, &fault));
	must((int)sum_trees(stage, &answer, &fault));
	unmount(stage);
	return answer.sum == stage->sum;
}

static int recover_mounted(void *context)
{
	struct bm_fault fault = {0};
	const int is_same = recover_bytes(context);

	must(mount(context, &fault));
	return is_same;
}

static void close_stage(void *context)
{
	struct stage *stage = context;

	unmount(stage);
	free(stage->memory);
	free(stage);
}

/* ------------------------------------------------------------------------------- transactions -- */

static int change_items(struct stage *stage, struct bm_fault *fault)
{
	static const uint8_t data[200 * 300];
	struct bm_writer *writer = stage->writer;
	struct bm_key keys[200] = {0};
	uint32_t sizes[200];
	const struct bm_key moved = {600, 7, 24}, twin = {601, 7, 24}, end = {700, 0, 24};
	const struct bm_key extent = {900, 0, BTRFS_EXTENT_DATA_KEY};
	const struct bm_key behind = {900, 1 << 20, BTRFS_EXTENT_DATA_KEY};

	for (uint32_t i = 0; i < 200; i++) {
		keys[i] = (struct bm_key){600 + i, 0, 24};
		sizes[i] = 300;
	}
	CHECKED(bm_writer_insert(writer, VOLUME, keys, sizes, 2, data, fault));
	CHECKED(bm_writer_insert_each(writer, VOLUME, keys + 2, sizes, 198, data, fault));
	CHECKED(bm_writer_update(writer, VOLUME, keys, 10, data, 20, fault));
	CHECKED(bm_writer_extend(writer, VOLUME, keys, data, 500, fault));
	CHECKED(bm_writer_truncate(writer, VOLUME, keys, 100, 1, fault));
	CHECKED(bm_writer_set_key(writer, VOLUME, keys, &moved, fault));
	CHECKED(bm_writer_duplicate(writer, VOLUME, &keys[1], &twin, fault));
	CHECKED(bm_writer_insert_extent(writer, VOLUME, &extent, NULL, data, 53, fault));
	CHECKED(bm_writer_insert_extent(writer, VOLUME, &extent, &behind, data, 53, fault));
	CHECKED(bm_writer_delete(writer, VOLUME, &moved, &end, 0, fault));
	CHECKED(bm_writer_delete(writer, VOLUME, &end, &highest, 1, fault));
	return BM_OK;
}

/* An extent with many owners, whose references do not fit into its item; and one that goes. */
static int change_space(struct stage *stage, struct bm_fault *fault)
{
	struct bm_writer *writer = stage->writer;
	struct bm_data_ref refs[120];
	uint64_t bytenr, size;
	uint8_t sums[64] = {1};

	CHECKED(bm_writer_reserve_data(writer, 4 * SECTOR, SECTOR, 0, &bytenr, &size, fault));
	for (uint32_t i = 0; i < 120; i++)
		refs[i] = (struct bm_data_ref){bytenr, size, 0, VOLUME, 1000 + i, 0};
	CHECKED(bm_writer_alloc_data_ref(writer, refs, 1, fault));
	CHECKED(bm_writer_insert_csums(writer, 7, bytenr, sums, size / SECTOR, fault));
	CHECKED(bm_writer_inc_data_ref(writer, refs + 1, 119, fault));
	CHECKED(bm_writer_run_some_refs(writer, 3, fault));
	CHECKED(bm_writer_run_refs(writer, fault));
	CHECKED(bm_writer_extent_info(writer, bytenr, &bytenr, &size, fault));
	CHECKED(bm_writer_drop_data_ref(writer, refs, 60, fault));
	CHECKED(bm_writer_run_refs(writer, fault));
	CHECKED(bm_writer_drop_data_ref(writer, refs + 60, 60, fault));
	CHECKED(bm_writer_reserve_in_class(writer, 2 * SECTOR, 0, &bytenr, fault));
	CHECKED(bm_writer_release_data(writer, bytenr, 2 * SECTOR, fault));
	return BM_OK;
}

/* The same where quotas are full, and simple: what they remember comes out as well. */
static int change_with_quotas(struct stage *stage, struct bm_fault *fault)
{
	struct bm_quota_delta deltas[8];

	bm_writer_set_quota(stage->writer, BM_QUOTA_FULL, 0, 3);
	CHECKED(change_space(stage, fault));
	CHECKED(bm_writer_drop_tree(stage->writer, SNAPSHOT, fault));
	CHECKED(commit(stage, fault));
	bm_writer_set_quota(stage->writer, BM_QUOTA_SIMPLE, 10, 3);
	CHECKED(change_space(stage, fault));
	CHECKED(bm_writer_run_refs(stage->writer, fault));
	CHECKED(bm_writer_take_deltas(stage->writer, deltas, 8));
	return BM_OK;
}

static int change_snapshots(struct stage *stage, struct bm_fault *fault)
{
	static const uint8_t data[300];
	const struct bm_key key = {300, 1, 24};
	const uint32_t size = 300;

	CHECKED(bm_writer_insert(stage->writer, VOLUME, &key, &size, 1, data, fault));
	CHECKED(bm_writer_insert(stage->writer, SNAPSHOT, &key, &size, 1, data, fault));
	CHECKED(bm_writer_copy_root(stage->writer, VOLUME, SNAPSHOT + 1, fault));
	CHECKED(bm_writer_insert_each(stage->writer, SNAPSHOT + 1, &(struct bm_key){400, 1, 24},
				      &size, 1, data, fault));
	CHECKED(bm_writer_drop_tree(stage->writer, SNAPSHOT, fault));
	CHECKED(bm_writer_new_tree(stage->writer, 410, 410, 1, fault));
	return BM_OK;
}

static int make_inodes(struct stage *stage, struct bm_fault *fault)
{
	static const uint8_t data[] = "o257-10-0namexxx/target/of/it";
	struct bm_new_inode inodes[20];
	const struct btrfs_inode_item item = {.generation = 10, .nlink = 1};
	const struct bm_new_inodes args = {.tree = VOLUME,
					   .ino = 5000,
					   .inodes = inodes,
					   .count = 20,
					   .item = (const uint8_t *)&item,
					   .data = data,
					   .size = sizeof(data)};

	for (uint64_t i = 0; i < 20; i++)
		inodes[i] = (struct bm_new_inode){.directory = 6000 + i,
						  .index = 2 + i,
						  .to_directory = 7000 + i,
						  .to_index = 2 + i,
						  .mode = i % 3 ? 0100644 : 0120777,
						  .made = {0, 9},
						  .name = {9, 4 + i % 3},
						  .target = {16, i % 3 ? 0 : 13}};
	CHECKED(bm_writer_new_inodes(stage->writer, &args, fault));
	return BM_OK;
}

static int unlink_files(struct stage *stage, struct bm_fault *fault)
{
	static uint8_t names[FILES * NAME];
	uint32_t sizes[FILES];
	uint64_t indexes[FILES];
	const struct bm_unlinks unlinks = {.tree = VOLUME,
					   .directory = DIRECTORY,
					   .count = 1,
					   .names = names + NAME,
					   .names_size = NAME,
					   .name_sizes = sizes};

	name_files(names, sizes, "file%04u", FILES);
	CHECKED(bm_writer_unlink_files(stage->writer, &unlinks, indexes, fault));
	return BM_OK;
}

static int make_extents(struct stage *stage, struct bm_fault *fault)
{
	static const uint8_t sums[4];
	uint64_t offsets[50], bytenr[50];
	uint32_t order[50], finish[50];
	struct bm_file_extents args = {.tree = VOLUME,
				       .root = VOLUME,
				       .ino = 4000,
				       .length = SECTOR,
				       .disk_num_bytes = SECTOR,
				       .offsets = offsets,
				       .count = 50,
				       .order = order,
				       .sums = sums};

	for (uint32_t i = 0; i < 50; i++) {
		offsets[i] = 2ull * i * SECTOR;
		order[i] = i;
		finish[i] = 49 - i;
	}
	CHECKED(bm_writer_file_extents(stage->writer, &args, bytenr, fault));
	args.ino = 4001;
	args.finish = finish;
	CHECKED(bm_writer_file_extents(stage->writer, &args, bytenr, fault));
	return BM_OK;
}

static int change_files(struct stage *stage, struct bm_fault *fault)
{
	CHECKED(make_files(stage, "more%04u", 2000, 1, fault));
	CHECKED(make_files(stage, "else%04u", 3000, 0, fault));
	CHECKED(write_files(stage, 3000, fault));
	CHECKED(make_inodes(stage, fault));
	CHECKED(unlink_files(stage, fault));
	return make_extents(stage, fault);
}

static int change_entries(struct stage *stage, struct bm_fault *fault)
{
	struct {
		struct btrfs_dir_item head;
		uint8_t name[NAME];
	} entry = {.head = {.name_len = NAME}};
	const struct bm_key key = {8000, 77, BTRFS_DIR_ITEM_KEY};
	uint64_t index;

	for (int i = 0; i < 3; i++) {
		memset(entry.name, 'a' + i, NAME);
		CHECKED(bm_writer_insert_entry(stage->writer, VOLUME, &key, (const uint8_t *)&entry,
					       sizeof(entry), fault));
	}
	CHECKED(
	    bm_writer_delete_entry(stage->writer, VOLUME, &key, entry.name, NAME, &index, fault));
	return BM_OK;
}

static int change_in_bulk(struct stage *stage, struct bm_fault *fault)
{
	static const uint8_t data[100 * 100];
	struct bm_key keys[100];
	uint32_t sizes[100];
	struct bm_writer_change changes[100];
	const struct bm_key first = {300, 0, 0}, last = {330, UINT64_MAX, BTRFS_INODE_REF_KEY};
	struct bm_root root;
	int64_t count;

	for (uint32_t i = 0; i < 100; i++) {
		keys[i] = (struct bm_key){9000, i, BTRFS_DIR_INDEX_KEY};
		sizes[i] = 100;
		changes[i] = (struct bm_writer_change){
		    .key = {9500, i, 24}, .size = 100, .kind = BM_WRITER_INSERT};
	}
	CHECKED(bm_writer_insert_batches(stage->writer, VOLUME, keys, sizes, 100, data, fault));
	CHECKED(bm_writer_delete_batches(stage->writer, VOLUME, keys + 10, 50, 30, fault));
	if (bm_writer_apply(stage->writer, VOLUME, changes, 60, data, 6000, fault) < 60)
		return fault->code;
	CHECKED(bm_writer_apply_calls(stage->writer, VOLUME, changes + 60, 2, 20, 20, data, 4000,
				      fault));
	CHECKED(change_entries(stage, fault));
	CHECKED(bm_writer_root(stage->writer, VOLUME, &root, fault));
	count = bm_scan(&root, &first, &last, &columns, MAX_ITEMS, fault);
	CHECKED(count);
	return bm_writer_copy_each(stage->writer, LOG, &columns, (size_t)count, fault);
}

static int64_t run(struct stage *stage, int (*change)(struct stage *, struct bm_fault *),
		   struct answer *answer, struct bm_fault *fault)
{
	struct bm_waiting_ref waiting[16];

	CHECKED(change(stage, fault));
	add_number(answer, (uint64_t)bm_writer_list_refs(stage->writer, waiting, 16));
	CHECKED(commit(stage, fault));
	return sum_trees(stage, answer, fault);
}

static int64_t run_mount(void *stage, struct answer *answer, struct bm_fault *fault)
{
	CHECKED(mount(stage, fault));
	CHECKED(sum_trees(stage, answer, fault));
	unmount(stage);
	return BM_OK;
}

/* -------------------------------------------------------------------------- for damaged bytes -- */

static int (*const changes[])(struct stage *, struct bm_fault *) = {
    change_items, change_space, change_with_quotas, change_snapshots, change_files, change_in_bulk,
};

void *writing_open(uint8_t **bytes, size_t *size, uint64_t *blocks, size_t *count)
{
	struct stage *stage = open_bytes();
	struct bm_fault fault = {0};
	const size_t room = *count;
	struct bm_root root;
	int64_t items;

	must(mount(stage, &fault));
	must(bm_writer_root(stage->writer, EXTENT_TREE, &root, &fault));
	items = bm_scan(&root, &lowest, &highest, &columns, MAX_ITEMS, &fault);
	*count = 0;
	for (int64_t i = 0; i < items && *count < room; i++)
		if (table.type[i] == BTRFS_METADATA_ITEM_KEY)
			blocks[(*count)++] = table.objectid[i] - METADATA;
	unmount(stage);
	*bytes = stage->memory;
	*size = METADATA_LENGTH + DATA_LENGTH;
	return stage;
}

void writing_try(void *context, size_t which)
{
	struct stage *stage = context;
	struct answer answer = {0};
	struct bm_fault fault = {0};

	if (mount(stage, &fault) >= 0)
		run(stage, changes[which % (sizeof(changes) / sizeof(*changes))], &answer, &fault);
	unmount(stage);
}

void writing_close(void *stage)
{
	close_stage(stage);
}

/* --------------------------------------------------------------------------------- scenarios -- */

#define TRANSACTION(name)                                                                          \
	static int64_t run_##name(void *stage, struct answer *answer, struct bm_fault *fault)      \
	{                                                                                          \
		return run(stage, change_##name, answer, fault);                                   \
	}

TRANSACTION(items)
TRANSACTION(space)
TRANSACTION(with_quotas)
TRANSACTION(snapshots)
TRANSACTION(files)
TRANSACTION(in_bulk)

const struct scenario writing[] = {
    {"mount", open_bytes, run_mount, recover_bytes, close_stage},
    {"items", open_mounted, run_items, recover_mounted, close_stage},
    {"space", open_mounted, run_space, recover_mounted, close_stage},
    {"quotas", open_mounted, run_with_quotas, recover_mounted, close_stage},
    {"snapshots", open_mounted, run_snapshots, recover_mounted, close_stage},
    {"files", open_mounted, run_files, recover_mounted, close_stage},
    {"in bulk", open_mounted, run_in_bulk, recover_mounted, close_stage},
};
const size_t writing_count = sizeof(writing) / sizeof(*writing);
