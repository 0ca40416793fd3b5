/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * The least that a C test needs: CHECK() counts and names what is wrong, and the test's status is
 * that of finish().
 */
#ifndef BTRFS_MODEL_CHECK_H
#define BTRFS_MODEL_CHECK_H

#include <stdio.h>

static int checks_done, checks_failed;

#define CHECK(condition)                                                                           \
	do {                                                                                       \
		checks_done++;                                                                     \
		if (!(condition)) {                                                                \
			checks_failed++;                                                           \
			fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, #condition);            \
		}                                                                                  \
	} while (0)

static inline int finish(const char *name)
{
	printf("%s: %d checks, %d failed\n", name, checks_done, checks_failed);
	return checks_failed ? 1 : 0;
}

#endif
