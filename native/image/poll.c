// SPDX-License-Identifier: GPL-2.0-only
/*
 * Signals during long loops. While a kernel runs, the caller cannot see that a signal came: Python
 * runs its handlers between two of its own instructions. So each loop over blocks asks here from
 * block to block, and now and then that asks the caller.
 */
#define _POSIX_C_SOURCE 200809L

#include "image/internal.h"

#include <time.h>

/* The caller may have to wait for a lock of its own to answer, so it is asked rarely. */
enum { BLOCKS_PER_LOOK = 32, MS_PER_QUESTION = 50 };

static int (*caller)(void);
static _Thread_local uint32_t blocks;
static _Thread_local int64_t asked;

void bm_set_poll(int (*poll)(void))
{
	caller = poll;
}

int bm_poll(struct bm_fault *fault)
{
	struct timespec time;
	int64_t now;

	if (++blocks % BLOCKS_PER_LOOK || !caller)
		return BM_OK;
	clock_gettime(CLOCK_MONOTONIC, &time);
	now = (int64_t)time.tv_sec * 1000 + time.tv_nsec / 1000000;
	if (now - asked < MS_PER_QUESTION)
		return BM_OK;
	asked = now;
	return caller() ? bm_fail(fault, (struct bm_fault){.code = BM_CALLBACK}) : BM_OK;
}
