// SPDX-License-Identifier: GPL-2.0-only
/*
 * Backref walks through trees of one leaf each that are written here item by item: who refers to
 * an extent, what the callbacks may do, and references that no kernel writes, each of which has to
 * be named.
 */
#include "image/checksum.h"
#include "kernels.h"

#include <errno.h>
#include <string.h>

#include "check.h"

#define NODESIZE 4096u
#define BASE 0x100000ull
#define BLOCK(i) (BASE + (uint64_t)(i)*NODESIZE)
#define EXTENT 0x800000ull
#define BLOCKS 16

enum { ROOTS = BASE, EXTENTS, FILES, SNAPSHOT, ABOVE, FREE }; /* which block is what */

static uint8_t memory[BLOCKS * NODESIZE];
static const uint8_t fsid[16] = "a filesystem id";
static struct bm_image *image;
static struct bm_forest *forest;

/* --------------------------------------------------------------------------------- building -- */

static uint8_t *block_at(int which)
{
	return memory + (which - ROOTS) * NODESIZE;
}

static uint64_t address(int which)
{
	return BLOCK(which - ROOTS);
}

static void start_leaf(int which, uint64_t owner)
{
	struct btrfs_header *header = (struct btrfs_header *)block_at(which);

	memset(header, 0, NODESIZE);
	memcpy(header->fsid, fsid, 16);
	header->bytenr = address(which);
	header->generation = 7;
	header->owner = owner;
}

/* Append an item; keys have to ascend. */
static void add_item(int which, uint64_t objectid, uint8_t type, uint64_t offset, const void *data,
		     uint32_t size)
{
	struct btrfs_header *header = (struct btrfs_header *)block_at(which);
	struct btrfs_item *items = (struct btrfs_item *)(header + 1);
	uint32_t n = header->nritems++, end = n ? items[n - 1].offset : NODESIZE - 101;

	items[n] = (struct btrfs_item){.key = {objectid, type, offset}, .size = size};
	items[n].offset = end - size;
	memcpy(block_at(which) + 101 + items[n].offset, data, size);
}

static void seal(int which)
{
	memset(block_at(which), 0, 32);
	bm_csum(0, block_at(which) + 32, NODESIZE - 32, block_at(which));
}

static void add_file_extent(int which, uint64_t ino, uint64_t at, uint64_t offset, uint64_t bytes)
{
	struct btrfs_file_extent_item item = {.type = BTRFS_FILE_EXTENT_REG,
					      .disk_bytenr = EXTENT,
					      .disk_num_bytes = 65536,
					      .offset = offset,
					      .num_bytes = bytes};

	add_item(which, ino, BTRFS_EXTENT_DATA_KEY, at, &item, sizeof(item));
}

/* An extent item with its inline references, put together piece by piece. */
struct extent_builder {
	uint8_t bytes[1024];
	uint32_t size;
};

static void append(struct extent_builder *extent, const void *data, uint32_t size)
{
	memcpy(extent->bytes + extent->size, data, size);
	extent->size += size;
}

static struct extent_builder new_extent(uint64_t refs, uint64_t flags)
{
	struct btrfs_extent_item item = {.refs = refs, .generation = 7, .flags = flags};
	struct extent_builder extent = {.size = 0};

	append(&extent, &item, sizeof(item));
	return extent;
}

static void add_inline(struct extent_builder *extent, uint8_t type, uint64_t value)
{
	struct btrfs_extent_inline_ref ref = {.type = type, .offset = value};

	append(extent, &ref, sizeof(ref));
}

static void add_data_ref(struct extent_builder *extent, uint64_t root, uint64_t ino,
			 uint64_t offset, uint32_t count)
{
	struct btrfs_extent_data_ref ref = {root, ino, offset, count};
	uint8_t type = BTRFS_EXTENT_DATA_REF_KEY;

	append(extent, &type, 1);
	append(extent, &ref, sizeof(ref));
}

static void put_data_extent(const struct extent_builder *extent)
{
	add_item(EXTENTS, EXTENT, BTRFS_EXTENT_ITEM_KEY, 65536, extent->bytes, extent->size);
}

/* The extent item of a tree block with one reference. */
static void put_block(int which, uint64_t level, uint8_t type, uint64_t value)
{
	struct extent_builder extent = new_extent(1, BTRFS_EXTENT_FLAG_TREE_BLOCK);

	add_inline(&extent, type, value);
	add_item(EXTENTS, address(which), BTRFS_METADATA_ITEM_KEY, level, extent.bytes,
		 extent.size);
}

/* Inode 257 of tree 5 shows the extent three times, inode 258 of tree 256 once. */
static void start(void)
{
	for (int which = ROOTS; which < FREE; which++)
		start_leaf(which, which == FILES ? 5 : which == SNAPSHOT ? 256 : 2);
	add_file_extent(FILES, 257, 0, 0, 4096);
	add_file_extent(FILES, 257, 8192, 0, 65536);
	add_file_extent(FILES, 257, 1 << 20, 4096, 8192);
	add_file_extent(SNAPSHOT, 258, 4096, 8192, 4096);
}

static void open_forest(void)
{
	struct bm_stripe stripe = {.offset = 0};
	struct bm_chunk chunk = {
	    .logical = BASE, .length = sizeof(memory), .stripes = &stripe, .num_stripes = 1};
	struct bm_root roots[] = {{.objectid = 256, .bytenr = address(SNAPSHOT)},
				  {.objectid = 5, .bytenr = address(ROOTS)},
				  {.objectid = 2, .bytenr = address(EXTENTS)},
				  {.objectid = 1, .bytenr = address(ROOTS)},
				  {.objectid = 5, .bytenr = address(FILES)}};
	struct bm_fault fault;

	for (int which = ROOTS; which < FREE; which++)
		seal(which);
	bm_forest_destroy(forest);
	bm_image_destroy(image);
	image = bm_image_create(memory, sizeof(memory), NODESIZE, NODESIZE, 0, fsid);
	CHECK(image && bm_image_set_chunks(image, &chunk, 1, &fault) == 0);
	for (size_t i = 0; i < sizeof(roots) / sizeof(*roots); i++) {
		roots[i].image = image;
		roots[i].generation = 7;
	}
	forest = bm_forest_create(image, roots, sizeof(roots) / sizeof(*roots), &fault);
	CHECK(forest != NULL);
}

/* How often something was counted since the last time that anything was asked for. */
static uint64_t taken(enum bm_counter counter)
{
	struct bm_work work = {0};
	struct bm_fault fault;

	CHECK(bm_image_take_work(image, &work, &fault) == 0);
	return work.counts[counter];
}

static void start_usual(void)
{
	struct extent_builder extent = new_extent(4, BTRFS_EXTENT_FLAG_DATA);

	start();
	add_data_ref(&extent, 5, 257, 0, 1);
	add_data_ref(&extent, 5, 257, 8192, 1);
	add_data_ref(&extent, 5, 257, (1 << 20) - 4096, 1);
	add_data_ref(&extent, 256, 258, (uint64_t)-4096, 1);
	put_block(FILES, 0, BTRFS_TREE_BLOCK_REF_KEY, 5);
	put_block(SNAPSHOT, 0, BTRFS_TREE_BLOCK_REF_KEY, 256);
	put_data_extent(&extent);
	open_forest();
}

/* ---------------------------------------------------------------------------------- walking -- */

struct log {
	int refs, walks, stores;
	int stop_after; /* this many; 0: never */
	int error;	/* the code of a fault instead of a request to stop */
	struct bm_fault *fault;
	uint64_t limit; /* of references of an extent */
	uint64_t known[1];
	int is_known;
	uint64_t skip_ino;
};

static int log_iterate(uint64_t ino, uint64_t offset, uint64_t num_bytes, uint64_t root,
		       void *context)
{
	struct log *log = context;

	CHECK(ino && num_bytes && root);
	(void)offset;
	log->refs++;
	if (log->refs != log->stop_after || !log->error)
		return log->refs == log->stop_after;
	*log->fault = (struct bm_fault){.code = log->error, .found = 77};
	return log->error;
}

static int log_check(uint64_t bytenr, const struct btrfs_extent_item *item, void *context)
{
	CHECK(bytenr);
	return item->refs > ((struct log *)context)->limit ? -ENOENT : 0;
}

static int log_skip(uint64_t root, uint64_t ino, uint64_t offset, void *context)
{
	(void)root;
	(void)offset;
	return ino == ((struct log *)context)->skip_ino;
}

static int log_lookup(uint64_t leaf, void *context, const uint64_t **roots, size_t *count)
{
	struct log *log = context;

	CHECK(leaf);
	*roots = log->known;
	*count = 1;
	return log->is_known;
}

static int log_store(uint64_t leaf, const uint64_t *roots, size_t count, void *context)
{
	CHECK(leaf && count <= 1 && (!count || roots[0]));
	((struct log *)context)->stores++;
	return 0;
}

static int walk(struct log *log, uint64_t behaviour, struct bm_fault *fault)
{
	struct bm_backref_walk ask = {.forest = forest,
				      .bytenr = EXTENT,
				      .ignore_extent_item_pos = 1,
				      .behaviour = behaviour,
				      .context = log,
				      .check_extent_item = log->limit ? log_check : NULL,
				      .skip_data_ref = log->skip_ino ? log_skip : NULL,
				      .cache_lookup = log_lookup,
				      .cache_store = log_store,
				      .iterate = log_iterate};

	log->fault = fault;
	return bm_iterate_extent_inodes(&ask, fault);
}

static void test_references(void)
{
	static const struct bm_inode_ref all[] = {{257, 0, 4096, 5},
						  {257, 8192, 65536, 5},
						  {257, 1 << 20, 8192, 5},
						  {258, 4096, 4096, 256}};
	struct bm_backref_walk ask = {.bytenr = EXTENT, .ignore_extent_item_pos = 1};
	struct bm_inode_refs refs;
	struct bm_fault fault;
	uint64_t flags, count, roots[4];
	struct bm_key key;

	start_usual();
	ask.forest = forest;
	CHECK(bm_collect_inode_refs(&ask, &refs, &fault) == 0 && refs.count == 4);
	/* the larger root id and offset first, and the later of two leaves' elements */
	for (size_t i = 0; i < 4 && refs.count == 4; i++) {
		int found = 0;

		for (size_t j = 0; j < 4; j++)
			found += !memcmp(&refs.rows[j], &all[i], sizeof(*all));
		CHECK(found == 1);
	}
	CHECK(refs.count == 4 && refs.rows[0].root == 256 && refs.rows[1].offset == 1 << 20);
	bm_inode_refs_free(&refs);
	ask.ignore_extent_item_pos = 0;
	ask.extent_item_pos = 9000;
	CHECK(bm_collect_inode_refs(&ask, &refs, &fault) == 0 && refs.count == 3);
	CHECK(refs.count == 3 && refs.rows[0].offset == 4096 + 808);
	bm_inode_refs_free(&refs);
	CHECK(bm_find_all_roots(&ask, roots, 1, &fault) == 2 && roots[0] == 256);
	CHECK(bm_find_all_leafs(&ask, roots, 4, &fault) == 2 && roots[1] == address(FILES));
	CHECK(bm_extent_from_logical(forest, EXTENT + 5, 0, &key, &flags, &count, &fault) == 0);
	CHECK(key.objectid == EXTENT && flags == BTRFS_EXTENT_FLAG_DATA && count == 4);
	CHECK(bm_extent_from_logical(forest, EXTENT + 65536, 0, &key, &flags, &count, &fault) ==
	      BM_ERRNO);
	CHECK(fault.found == ENOENT);
	ask.bytenr = EXTENT + 4096;
	CHECK(bm_find_all_leafs(&ask, roots, 4, &fault) == 0);
}

static void test_callbacks(void)
{
	struct log plain = {0}, stop = {.stop_after = 2},
		   error = {.stop_after = 2, .error = BM_BAD_VALUE};
	struct log limit = {.limit = 3}, skip = {.skip_ino = 257}, known = {.is_known = 1};
	struct bm_fault fault;

	start_usual();
	CHECK(walk(&plain, 0, &fault) == 0 && plain.refs == 4 && plain.stores == 2);
	CHECK(walk(&stop, 0, &fault) == 0 && stop.refs == 2 && stop.stores == 2);
	CHECK(walk(&error, 0, &fault) == BM_BAD_VALUE && fault.found == 77);
	CHECK(walk(&limit, 0, &fault) == 0 && limit.refs == 0);
	CHECK(walk(&skip, 0, &fault) == 0 && skip.refs == 1);
	taken(BM_WORK_find_parent_nodes);
	known.known[0] = 5;
	CHECK(walk(&known, 0, &fault) == 0 && known.refs == 4 && !known.stores);
	CHECK(taken(BM_WORK_find_parent_nodes) == 1);
	/* each is reported when it is found and again in the end, unless that was enough */
	CHECK(walk(&known, 1ull << BM_TOGGLE_SEND_BACKREF_SKIP, &fault) == 0 && known.refs == 12);
	known.refs = 0;
	known.stop_after = 1;
	CHECK(walk(&known, 1ull << BM_TOGGLE_SEND_BACKREF_SKIP, &fault) == 0 && known.refs == 1);
}

/* What waits takes references away and brings others, also of an extent that has no item yet. */
static void test_waiting(void)
{
	struct bm_waiting_ref waiting[] = {{.bytenr = EXTENT,
					    .value = 256,
					    .ino = 258,
					    .offset = (uint64_t)-4096,
					    .count = -1,
					    .type = BTRFS_EXTENT_DATA_REF_KEY,
					    .level = -1},
					   {.bytenr = EXTENT,
					    .value = 5,
					    .ino = 257,
					    .offset = 8192,
					    .count = -1,
					    .type = BTRFS_EXTENT_DATA_REF_KEY,
					    .level = -1},
					   {.bytenr = EXTENT + (1 << 20),
					    .value = address(FILES),
					    .count = 1,
					    .type = BTRFS_SHARED_DATA_REF_KEY,
					    .level = -1},
					   {.bytenr = address(FREE),
					    .value = address(FILES),
					    .count = 1,
					    .type = BTRFS_SHARED_BLOCK_REF_KEY}};
	struct log log = {0}, later = {0};
	struct bm_backref_walk ask = {.bytenr = EXTENT + (1 << 20)};
	struct bm_fault fault;
	uint64_t leafs[2];

	start_usual();
	CHECK(bm_forest_set_waiting(forest, waiting, 4, &fault) == 0);
	CHECK(walk(&log, 0, &fault) == 0 && log.refs == 2 && log.stores == 1);
	ask.forest = forest;
	CHECK(bm_find_all_leafs(&ask, leafs, 2, &fault) == 1 && leafs[0] == address(FILES));
	/* the block that refers is on the level above */
	ask.bytenr = address(FREE);
	CHECK(bm_find_all_leafs(&ask, leafs, 2, &fault) == 1 && leafs[0] == address(FILES));
	CHECK(bm_forest_set_waiting(forest, NULL, 0, &fault) == 0);
	CHECK(walk(&later, 0, &fault) == 0 && later.refs == 4);
}

/* A subvolume that nobody opened costs a search of the tree of roots, each time. */
static void test_open(void)
{
	struct log log = {.skip_ino = 257};
	struct bm_fault fault;
	uint64_t before;

	start_usual();
	CHECK(walk(&log, 0, &fault) == 0);
	before = taken(BM_WORK_btrfs_search_slot);
	bm_forest_open(forest, 256);
	CHECK(walk(&log, 0, &fault) == 0);
	CHECK(taken(BM_WORK_btrfs_search_slot) == before - 2);
	CHECK(bm_forest_root(forest, 5)->bytenr == address(FILES));
	CHECK(bm_forest_root(forest, 6) == NULL);
}

/* ----------------------------------------------------------------------------------- damage -- */

/* Walk from the extent, which has one SHARED_DATA_REF by the leaf FILES. */
#define DAMAGED(wanted, statement)                                                                 \
	do {                                                                                       \
		struct extent_builder extent = new_extent(1, BTRFS_EXTENT_FLAG_DATA);              \
		struct btrfs_shared_data_ref shared = {1};                                         \
		struct log log = {0};                                                              \
		struct bm_fault fault = {0};                                                       \
		start();                                                                           \
		add_inline(&extent, BTRFS_SHARED_DATA_REF_KEY, address(FILES));                    \
		append(&extent, &shared, sizeof(shared));                                          \
		statement;                                                                         \
		put_data_extent(&extent);                                                          \
		open_forest();                                                                     \
		CHECK(walk(&log, 0, &fault) == (wanted));                                          \
		if (wanted)                                                                        \
			CHECK(fault.code == (wanted) && (fault.block || fault.found));             \
	} while (0)

#define FILES_BELOW(type, value) put_block(FILES, 0, type, value)

static void test_damage(void)
{
	DAMAGED(BM_OK, FILES_BELOW(BTRFS_TREE_BLOCK_REF_KEY, 5));
	DAMAGED(BM_OK, FILES_BELOW(BTRFS_TREE_BLOCK_REF_KEY, 999));
	/* who refers to the leaf */
	DAMAGED(BM_NOT_FOUND, );
	DAMAGED(BM_NOT_FOUND, FILES_BELOW(BTRFS_SHARED_BLOCK_REF_KEY, BLOCK(9)));
	DAMAGED(BM_LOOP, FILES_BELOW(BTRFS_SHARED_BLOCK_REF_KEY, address(ABOVE)); add_item(
		    EXTENTS, address(FILES), BTRFS_SHARED_BLOCK_REF_KEY, address(SNAPSHOT), "", 0);
		put_block(SNAPSHOT, 1, BTRFS_SHARED_BLOCK_REF_KEY, address(ABOVE));
		put_block(ABOVE, 1, BTRFS_SHARED_BLOCK_REF_KEY, address(ABOVE)));
	/* the root of a relocation tree is its own parent */
	DAMAGED(BM_OK, FILES_BELOW(BTRFS_SHARED_BLOCK_REF_KEY, address(FILES)));
	DAMAGED(BM_OK, FILES_BELOW(BTRFS_SHARED_BLOCK_REF_KEY, address(ABOVE));
		put_block(ABOVE, 1, BTRFS_SHARED_BLOCK_REF_KEY, address(ABOVE)));
	DAMAGED(BM_BAD_LEVEL, FILES_BELOW(BTRFS_SHARED_BLOCK_REF_KEY, address(ABOVE));
		put_block(ABOVE, 1, BTRFS_SHARED_BLOCK_REF_KEY, address(FILES)));
	DAMAGED(BM_BAD_LEVEL, put_block(FILES, 1, BTRFS_TREE_BLOCK_REF_KEY, 5));
	DAMAGED(BM_BAD_LEVEL, put_block(FILES, 300, BTRFS_TREE_BLOCK_REF_KEY, 5));
	DAMAGED(BM_BAD_VALUE, FILES_BELOW(BTRFS_SHARED_BLOCK_REF_KEY, 0));
	DAMAGED(BM_BAD_VALUE, FILES_BELOW(BTRFS_SHARED_BLOCK_REF_KEY, 77));
	DAMAGED(BM_BAD_VALUE, FILES_BELOW(BTRFS_EXTENT_DATA_REF_KEY, 5));
	DAMAGED(BM_BAD_VALUE, FILES_BELOW(99, 5));
	/* who refers to the extent */
	DAMAGED(BM_BAD_ITEM_SIZE, extent.size -= 1);
	DAMAGED(BM_BAD_ITEM_SIZE, extent.size -= 5);
	DAMAGED(BM_BAD_ITEM_SIZE, extent.size = 23);
	DAMAGED(BM_BAD_VALUE, extent.bytes[16] = 0);
	DAMAGED(BM_BAD_VALUE, extent.bytes[16] = 3);
	DAMAGED(BM_BAD_VALUE, add_inline(&extent, BTRFS_TREE_BLOCK_REF_KEY, 5));
	DAMAGED(BM_BAD_ITEM_SIZE, add_inline(&extent, BTRFS_EXTENT_DATA_REF_KEY, 5));
	/* what the leaf holds */
	DAMAGED(BM_BAD_ITEM_SIZE, add_item(FILES, 300, BTRFS_EXTENT_DATA_KEY, 0, "", 0));
	DAMAGED(BM_UNMAPPED, memset(extent.bytes + 27, 0xf0, 6));
}

int main(void)
{
	test_references();
	test_callbacks();
	test_waiting();
	test_open();
	test_damage();
	bm_forest_destroy(forest);
	bm_image_destroy(image);
	return finish("backref");
}
