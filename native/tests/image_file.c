// SPDX-License-Identifier: GPL-2.0-only
#define _POSIX_C_SOURCE 200809L

#include "image_file.h"
#include "image/checksum.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#if defined(__SANITIZE_ADDRESS__)
#define WITH_ASAN 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define WITH_ASAN 1
#endif
#endif

#ifdef WITH_ASAN
#include <sanitizer/asan_interface.h>
#else
#define ASAN_POISON_MEMORY_REGION(start, size) ((void)(start), (void)(size))
#define ASAN_UNPOISON_MEMORY_REGION(start, size) ((void)(start), (void)(size))
#endif

#define SUPER_OFFSET 65536
#define MAX_CHUNKS 256
#define MAX_ROOTS 256
#define CHUNK_ITEM 228
#define ROOT_ITEM 132
#define DATA_GROUP 1
#define METADATA_GROUP 4
#define MAX_DATA (64u << 20)

static const struct bm_key lowest;

struct bootstrap {
	const uint8_t *base;
	uint64_t size;
	const struct btrfs_super_block *super;
	struct bm_image *image;
	struct bm_chunk chunks[MAX_CHUNKS];
	struct bm_stripe stripes[MAX_CHUNKS][2];
	size_t chunk_count;
};

static void fail(const char *path, const char *what)
{
	fprintf(stderr, "%s: %s\n", path, what);
	exit(2);
}

static void need(int condition, const char *path, const char *what)
{
	if (!condition)
		fail(path, what);
}

static int by_logical(const void *a, const void *b)
{
	uint64_t left = ((const struct bm_chunk *)a)->logical;
	uint64_t right = ((const struct bm_chunk *)b)->logical;

	return left < right ? -1 : left > right;
}

static void add_chunk(struct bootstrap *boot, uint64_t logical, const uint8_t *data)
{
	const struct btrfs_chunk *chunk = (const struct btrfs_chunk *)data;
	const struct btrfs_stripe *stripes = &chunk->stripe;
	struct bm_chunk *out = &boot->chunks[boot->chunk_count];

	for (size_t i = 0; i < boot->chunk_count; i++)
		if (boot->chunks[i].logical == logical)
			return;
	if (boot->chunk_count == MAX_CHUNKS)
		return;
	*out = (struct bm_chunk){.logical = logical, .length = chunk->length, .type = chunk->type};
	out->stripes = boot->stripes[boot->chunk_count];
	out->num_stripes = chunk->num_stripes < 2 ? 1 : 2;
	for (uint32_t i = 0; i < out->num_stripes; i++)
		boot->stripes[boot->chunk_count][i].offset = stripes[i].offset;
	boot->chunk_count++;
}

static void use_chunks(struct bootstrap *boot)
{
	struct bm_fault fault;

	qsort(boot->chunks, boot->chunk_count, sizeof(*boot->chunks), by_logical);
	bm_image_set_chunks(boot->image, boot->chunks, boot->chunk_count, &fault);
}

static void read_sys_chunks(struct bootstrap *boot)
{
	const uint8_t *at = boot->super->sys_chunk_array;
	const uint8_t *end = at + boot->super->sys_chunk_array_size;

	while (at + 17 + 80 <= end) {
		const struct btrfs_disk_key *key = (const struct btrfs_disk_key *)at;
		const struct btrfs_chunk *chunk = (const struct btrfs_chunk *)(at + 17);

		add_chunk(boot, key->offset, at + 17);
		at += 17 + 48 + 32 * (size_t)chunk->num_stripes;
	}
	use_chunks(boot);
}

/* Call `visit` for each item of `type` in a tree. */
static void each_item(struct bootstrap *boot, const struct bm_root *root, uint8_t type,
		      void (*visit)(struct bootstrap *, const struct bm_key *, const uint8_t *,
				    void *),
		      void *context)
{
	struct bm_path path = {.node = {0}};
	struct bm_fault fault;
	int ret = bm_search_slot_for_read(root, &lowest, 1, &path, &fault);

	while (ret == 0) {
		const uint8_t *leaf = path.node[0];
		const struct btrfs_item *items = (const struct btrfs_item *)(leaf + 101);
		uint32_t nritems = ((const struct btrfs_header *)leaf)->nritems;

		for (uint32_t i = 0; i < nritems; i++) {
			struct bm_key key = {items[i].key.objectid, items[i].key.offset,
					     items[i].key.type};

			if (key.type == type)
				visit(boot, &key, leaf + 101 + items[i].offset, context);
		}
		ret = bm_next_leaf(root, &path, &fault);
	}
}

static void visit_chunk(struct bootstrap *boot, const struct bm_key *key, const uint8_t *data,
			void *context)
{
	(void)context;
	add_chunk(boot, key->offset, data);
}

static void visit_root(struct bootstrap *boot, const struct bm_key *key, const uint8_t *data,
		       void *context)
{
	const struct btrfs_root_item *item = (const struct btrfs_root_item *)data;
	struct packed_image *packed = context;

	(void)boot;
	if (!item->bytenr || packed->root_count == MAX_ROOTS)
		return;
	packed->roots[packed->root_count++] = (struct bm_root){.objectid = key->objectid,
							       .bytenr = item->bytenr,
							       .generation = item->generation,
							       .level = item->level};
}

static void find_roots(struct bootstrap *boot, struct packed_image *packed)
{
	const struct btrfs_super_block *super = boot->super;
	struct bm_root chunk_root = {.image = boot->image,
				     .objectid = 3,
				     .bytenr = super->chunk_root,
				     .generation = super->chunk_root_generation,
				     .level = super->chunk_root_level};
	struct bm_root tree_root = {.image = boot->image,
				    .objectid = 1,
				    .bytenr = super->root,
				    .generation = super->generation,
				    .level = super->root_level};

	packed->roots = calloc(MAX_ROOTS, sizeof(*packed->roots));
	each_item(boot, &chunk_root, CHUNK_ITEM, visit_chunk, NULL);
	use_chunks(boot);
	packed->roots[packed->root_count++] = chunk_root;
	packed->roots[packed->root_count++] = tree_root;
	each_item(boot, &tree_root, ROOT_ITEM, visit_root, packed);
	for (size_t i = 0; i < packed->root_count; i++)
		packed->roots[i].image = boot->image;
}

/* Logical addresses of all tree blocks, each once, as chunks of one block. */
static void find_blocks(struct packed_image *packed, const char *path)
{
	struct bm_fault fault;
	size_t room = 0;

	for (size_t i = 0; i < packed->root_count; i++) {
		int64_t blocks = bm_walk_blocks(&packed->roots[i], 0, NULL, 0, &fault);

		need(blocks >= 0, path, "a tree cannot be walked");
		room += (size_t)blocks;
	}
	packed->chunks = calloc(room + MAX_CHUNKS, sizeof(*packed->chunks));
	packed->stripes = calloc(room + MAX_CHUNKS, sizeof(*packed->stripes));
	for (size_t i = 0; i < packed->root_count; i++) {
		int64_t blocks = bm_walk_blocks(&packed->roots[i], 0, NULL, 0, &fault);
		struct bm_block *walked = calloc((size_t)blocks, sizeof(*walked));

		bm_walk_blocks(&packed->roots[i], 0, walked, (size_t)blocks, &fault);
		for (int64_t j = 0; j < blocks; j++)
			packed->chunks[packed->count++].logical = walked[j].logical;
		free(walked);
	}
	qsort(packed->chunks, packed->count, sizeof(*packed->chunks), by_logical);
	room = packed->count;
	packed->count = 0;
	for (size_t i = 0; i < room; i++)
		if (!i || packed->chunks[i].logical != packed->chunks[i - 1].logical)
			packed->chunks[packed->count++].logical = packed->chunks[i].logical;
}

/* Chunks that hold data alone, one behind the other after the blocks. */
static void find_data(struct bootstrap *boot, struct packed_image *packed)
{
	uint64_t end;

	packed->stride = packed->nodesize + packed->sectorsize;
	end = packed->count * packed->stride;
	packed->chunk_count = packed->count;
	for (size_t i = 0; i < boot->chunk_count; i++) {
		struct bm_chunk chunk = boot->chunks[i];

		if (!(chunk.type & DATA_GROUP) || chunk.type & METADATA_GROUP ||
		    chunk.length > MAX_DATA || chunk.stripes->offset > boot->size ||
		    chunk.length > boot->size - chunk.stripes->offset)
			continue;
		chunk.num_stripes = 1;
		packed->chunks[packed->chunk_count++] = chunk;
		end += chunk.length;
	}
	packed->size = end;
}

static void pack_data(struct bootstrap *boot, struct packed_image *packed)
{
	uint64_t end = packed->count * packed->stride;

	for (size_t i = packed->count; i < packed->chunk_count; i++) {
		struct bm_chunk *chunk = &packed->chunks[i];

		memcpy(packed->memory + end, boot->base + chunk->stripes->offset, chunk->length);
		packed->stripes[i].offset = end;
		chunk->stripes = &packed->stripes[i];
		end += chunk->length;
	}
}

static void pack_blocks(struct bootstrap *boot, struct packed_image *packed)
{
	packed->memory = calloc(1, packed->size);
	packed->pristine = malloc(packed->count * packed->stride);
	for (size_t i = 0; i < packed->count; i++) {
		struct bm_chunk *chunk = &packed->chunks[i];
		uint64_t physical, contiguous;
		uint8_t *block = packed->pristine + i * packed->stride;
		struct bm_fault fault;

		bm_image_map(boot->image, chunk->logical, 0, &physical, &contiguous, &fault);
		memcpy(block, boot->base + physical, packed->nodesize);
		memset(block + packed->nodesize, 0, packed->sectorsize);
		chunk->length = packed->nodesize;
		packed->stripes[i].offset = i * packed->stride;
		chunk->stripes = &packed->stripes[i];
		chunk->num_stripes = 1;
	}
	memcpy(packed->memory, packed->pristine, packed->count * packed->stride);
	for (size_t i = 0; i < packed->count; i++)
		ASAN_POISON_MEMORY_REGION(packed->memory + i * packed->stride + packed->nodesize,
					  packed->sectorsize);
}

void packed_image_load(struct packed_image *packed, const char *path)
{
	struct bootstrap boot = {0};
	struct stat status;
	int fd = open(path, O_RDONLY);

	need(fd >= 0 && fstat(fd, &status) == 0, path, "cannot be read");
	boot.size = (uint64_t)status.st_size;
	need(boot.size >= SUPER_OFFSET + 4096, path, "is too small");
	boot.base = mmap(NULL, boot.size, PROT_READ, MAP_PRIVATE, fd, 0);
	need(boot.base != MAP_FAILED, path, "cannot be mapped");
	close(fd);
	boot.super = (const struct btrfs_super_block *)(boot.base + SUPER_OFFSET);
	need(memcmp(&boot.super->magic, "_BHRfS_M", 8) == 0, path, "has no superblock");

	memset(packed, 0, sizeof(*packed));
	packed->nodesize = boot.super->nodesize;
	packed->sectorsize = boot.super->sectorsize;
	packed->csum_type = boot.super->csum_type;
	memcpy(packed->fsid, boot.super->fsid, 16);
	boot.image = bm_image_create(boot.base, boot.size, packed->nodesize, packed->sectorsize,
				     packed->csum_type, packed->fsid);
	need(boot.image != NULL, path, "has an impossible node size");
	read_sys_chunks(&boot);
	find_roots(&boot, packed);
	find_blocks(packed, path);
	find_data(&boot, packed);
	pack_blocks(&boot, packed);
	pack_data(&boot, packed);
	bm_image_destroy(boot.image);
	munmap((void *)boot.base, boot.size);
}

void packed_image_free(struct packed_image *packed)
{
	ASAN_UNPOISON_MEMORY_REGION(packed->memory, packed->size);
	free(packed->memory);
	free(packed->pristine);
	free(packed->chunks);
	free(packed->stripes);
	free(packed->roots);
}

struct bm_image *packed_image_open(const struct packed_image *packed)
{
	struct bm_chunk *sorted = malloc(packed->chunk_count * sizeof(*sorted));
	struct bm_image *image =
	    bm_image_create(packed->memory, packed->size, packed->nodesize, packed->sectorsize,
			    packed->csum_type, packed->fsid);
	struct bm_fault fault;

	memcpy(sorted, packed->chunks, packed->chunk_count * sizeof(*sorted));
	qsort(sorted, packed->chunk_count, sizeof(*sorted), by_logical);
	if (!image || bm_image_set_chunks(image, sorted, packed->chunk_count, &fault) < 0)
		fail("image", "no memory");
	free(sorted);
	return image;
}

uint8_t *packed_image_block(const struct packed_image *packed, size_t index)
{
	return packed->memory + index * packed->stride;
}

void packed_image_seal(const struct packed_image *packed, size_t index)
{
	uint8_t *block = packed_image_block(packed, index);

	memset(block, 0, 32);
	bm_csum(packed->csum_type, block + 32, packed->nodesize - 32, block);
}

void packed_image_reset(const struct packed_image *packed, size_t index)
{
	memcpy(packed_image_block(packed, index), packed->pristine + index * packed->stride,
	       packed->nodesize);
}
