/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Allocations that fail, one after the other, in every C kernel.
 *
 * A scenario opens a stage, runs on it and closes it. While it runs the n-th allocation fails, or
 * all from the n-th on. Whatever it comes to, the same run on the same stage is right afterwards.
 */
#ifndef BTRFS_MODEL_FAULTS_H
#define BTRFS_MODEL_FAULTS_H

#include "image_file.h"

/* ------------------------------------------------------------------------------ allocations -- */

/* The linker sends what allocates, maps and frees here. */
enum { FAIL_NONE = -1 };
/* From now on the n-th allocation fails (0: the next), or all from it on. */
void allocations_fail(int64_t n, int all);
/* Let none fail any more; how many were asked for since allocations_fail(). */
int64_t allocations_stop(void);
/* Blocks that were allocated and are not free yet. */
int64_t allocations_alive(void);

/* ---------------------------------------------------------------------------------- answers -- */

/* What came of a run, as one number. */
struct answer {
	uint64_t sum;
};
void add_bytes(struct answer *answer, const void *bytes, size_t size);
void add_number(struct answer *answer, uint64_t number);

/* -------------------------------------------------------------------------------- scenarios -- */

struct scenario {
	const char *name;
	void *(*open)(void);
	/* 0 or more, or the code of the fault, which is filled then */
	int64_t (*run)(void *stage, struct answer *answer, struct bm_fault *fault);
	/* After a run: what a failed one leaves to be done. 0: something is not as before. Or NULL. */
	int (*recover)(void *stage);
	void (*close)(void *stage);
};
extern const struct scenario reading[], writing[], others[];
extern const size_t reading_count, writing_count, others_count;

/*
 * A filesystem that is not mounted, its bytes, which may be damaged, and the addresses of its tree
 * blocks in them; mount it, try transaction `which` on it, and unmount it.
 */
void *writing_open(uint8_t **bytes, size_t *size, uint64_t *blocks, size_t *count);
void writing_try(void *stage, size_t which);
void writing_close(void *stage);

/* What all that read an image share; the process ends with a message when it cannot be read. */
void reading_load(const char *path);
void reading_unload(void);

/* A test that cannot be set up. */
_Noreturn void broken(const char *what);

#endif
