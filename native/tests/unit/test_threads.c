// SPDX-License-Identifier: GPL-2.0-only
/*
 * The kernels as several threads use them: an image of each, and one that is locked for each call;
 * counters that all of them add to; files that are mapped, cut off and unmapped meanwhile.
 */
#define _GNU_SOURCE /* mkstemp(), MAP_ANONYMOUS */
#include "image/checksum.h"
#include "check.h"
#include "kernels.h"
#include "ondisk.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { THREADS = 8, ROUNDS = 200, NODESIZE = 4096, LOGICAL = 65536, ITEMS = 20, SIZE = 1 << 20 };

static const uint8_t fsid[16] = "a filesystem id";
static struct bm_work whole;

/* A file with one leaf at LOGICAL, whose items have no payload. */
static int make_file(void)
{
	uint8_t leaf[NODESIZE];
	char name[] = "/tmp/btrfs_model-XXXXXX";
	struct btrfs_header *header = (struct btrfs_header *)leaf;
	struct btrfs_item *items = (struct btrfs_item *)(leaf + BTRFS_HEADER_SIZE);
	int file = mkstemp(name);

	unlink(name);
	memset(leaf, 0, sizeof(leaf));
	memcpy(header->fsid, fsid, sizeof(fsid));
	header->bytenr = LOGICAL;
	header->nritems = ITEMS;
	for (uint32_t i = 0; i < ITEMS; i++) {
		items[i].key.objectid = i;
		items[i].offset = NODESIZE - BTRFS_HEADER_SIZE;
	}
	bm_csum(0, leaf + BTRFS_CSUM_SIZE, NODESIZE - BTRFS_CSUM_SIZE, header->csum);
	if (file < 0 || ftruncate(file, SIZE) || pwrite(file, leaf, NODESIZE, LOGICAL) != NODESIZE)
		exit(2);
	return file;
}

struct opened {
	int file;
	const uint8_t *base;
	uint8_t *copies;
	struct bm_image *image;
	pthread_mutex_t lock;
};

static int open_image(struct opened *one, uint64_t most)
{
	struct bm_stripe stripe = {.offset = LOGICAL};
	struct bm_chunk chunk = {
	    .logical = LOGICAL, .length = SIZE - LOGICAL, .stripes = &stripe, .num_stripes = 1};
	struct bm_file file = {.size = SIZE};
	struct bm_fault fault;

	one->file = file.file = make_file();
	one->base = bm_map_files(&file, 1, SIZE, &fault);
	one->copies = mmap(NULL, SIZE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	one->image = bm_image_create(one->base, SIZE, NODESIZE, NODESIZE, 0, fsid);
	pthread_mutex_init(&one->lock, NULL);
	return bm_image_copy_blocks(one->image, one->copies, most, &fault) ||
	       bm_image_set_chunks(one->image, &chunk, 1, &fault);
}

static void close_image(struct opened *one)
{
	bm_image_destroy(one->image);
	bm_unmap_files(one->base);
	munmap(one->copies, SIZE);
	close(one->file);
	pthread_mutex_destroy(&one->lock);
}

/* A call as Python makes it: the image is ours, then what was counted goes to who asked. */
static int search(struct opened *one, struct bm_work *work)
{
	struct bm_root root = {.image = one->image, .objectid = 5, .bytenr = LOGICAL};
	struct bm_key key = {.objectid = ITEMS / 2};
	struct bm_path path = {0};
	struct bm_fault fault;
	size_t reads;
	int ret;

	pthread_mutex_lock(&one->lock);
	ret = bm_image_cache_start(one->image, NULL, 0, &fault);
	ret = ret ? ret : bm_search_slot_for_read(&root, &key, 1, &path, &fault);
	bm_image_cache_reads(one->image, &reads);
	bm_image_cache_stop(one->image);
	if (bm_image_take_work(one->image, work, &fault) < 0)
		ret = fault.code;
	pthread_mutex_unlock(&one->lock);
	return ret;
}

static void *search_both(void *context)
{
	struct opened *shared = context, own;
	struct bm_work work = {.outer = &whole};
	intptr_t bad = open_image(&own, SIZE);

	for (int i = 0; i < ROUNDS; i++)
		bad += search(shared, &work) != 0 || search(&own, &work) != 0;
	bad += work.counts[BM_WORK_btrfs_search_slot] != 2 * ROUNDS;
	close_image(&own);
	return (void *)bad;
}

/* A file that is cut off under its reader: zeros, and a fault; the others see nothing of it. */
static void *lose(void *context)
{
	struct bm_work work = {0};
	struct bm_fault fault;
	intptr_t bad = 0;

	(void)context;
	for (int i = 0; i < ROUNDS / 10; i++) {
		struct opened one;
		uint64_t most = i % 2 ? SIZE : 0;

		bad += open_image(&one, most) || (i % 3 && search(&one, &work));
		bad += ftruncate(one.file, LOGICAL / 2) != 0;
		bad += bm_image_take_work(one.image, &work, &fault) !=
		       (i % 3 && !most ? BM_FILE_CHANGED : 0);
		bad += *(const volatile uint8_t *)(one.base + LOGICAL) != 0;
		bad += search(&one, &work) != BM_FILE_CHANGED;
		close_image(&one);
	}
	return (void *)bad;
}

static void test_threads(void)
{
	pthread_t threads[THREADS + 1];
	struct opened shared;
	void *bad;

	CHECK(open_image(&shared, SIZE) == 0);
	pthread_create(&threads[THREADS], NULL, lose, NULL);
	for (int i = 0; i < THREADS; i++)
		pthread_create(&threads[i], NULL, search_both, &shared);
	for (int i = 0; i <= THREADS; i++) {
		pthread_join(threads[i], &bad);
		CHECK(bad == NULL);
	}
	CHECK(whole.counts[BM_WORK_btrfs_search_slot] == 2ull * THREADS * ROUNDS);
	close_image(&shared);
}

/* What was verified stays, whatever becomes of the file, and a copy that is asked for is new. */
static void test_rewritten(void)
{
	struct bm_expect expect = {.level = -1};
	struct bm_work work = {0};
	struct opened one;
	struct bm_fault fault;
	const uint8_t *block;
	uint8_t saved[NODESIZE], junk[NODESIZE];

	memset(junk, 0xff, sizeof(junk));
	CHECK(open_image(&one, SIZE) == 0);
	block = bm_image_block(one.image, LOGICAL, &expect, &fault);
	CHECK(block == one.copies + LOGICAL);
	memcpy(saved, block, NODESIZE);
	CHECK(pwrite(one.file, junk, NODESIZE, LOGICAL) == NODESIZE);
	CHECK(bm_image_block(one.image, LOGICAL, &expect, &fault) == block);
	CHECK(!memcmp(saved, block, NODESIZE));
	CHECK(search(&one, &work) == 0);
	CHECK(bm_image_verify_copy(one.image, LOGICAL, 0, &expect, &fault) == BM_BAD_CSUM);
	CHECK(!memcmp(saved, block, NODESIZE));
	close_image(&one);
	/* beyond what is copied the file itself is shown, and a change is told */
	CHECK(open_image(&one, 0) == 0);
	CHECK(search(&one, &work) == 0);
	usleep(20000);
	CHECK(pwrite(one.file, junk, 1, 0) == 1);
	CHECK(search(&one, &work) == BM_FILE_CHANGED);
	close_image(&one);
}

int main(void)
{
	test_threads();
	test_rewritten();
	return finish("threads");
}
