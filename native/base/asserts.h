/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * What must hold of our own state, said where it is changed: a leaf has room, keys ascend, a count is
 * what it counts. With BM_ASSERTIONS (tests, sanitizers, fuzzing) a program in which it does not hold
 * ends there; without it nothing is compiled. Bytes of an image are never asserted: whoever reads
 * them returns a code.
 */
#ifndef BTRFS_MODEL_ASSERTS_H
#define BTRFS_MODEL_ASSERTS_H

#ifdef BM_ASSERTIONS
_Noreturn void bm_assert_failed(const char *what, const char *function, const char *file, int line);
#define BM_ASSERT(what) ((what) ? (void)0 : bm_assert_failed(#what, __func__, __FILE__, __LINE__))
#else
/* Names are used, nothing is evaluated. */
#define BM_ASSERT(what) ((void)sizeof((what) ? 1 : 0))
#endif

#endif
