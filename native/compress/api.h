/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * File data as the kernel compresses them, to the same bytes: lib/lzo and lib/zlib_deflate, which
 * differ from what others have of these formats. zlib is decompressed elsewhere.
 */
#ifndef BTRFS_MODEL_COMPRESS_API_H
#define BTRFS_MODEL_COMPRESS_API_H

#include <stdint.h>

#include "base/fault.h"

/*
 * Compress as lzo1x_1_compress() does. Returns the bytes written. `out` has room for what
 * lzo1x_worst_compress() says: size + size / 16 + 64 + 3 bytes.
 */
int64_t bm_lzo1x_compress(const uint8_t *in, uint32_t size, uint8_t *out);

/*
 * Decompress one lzo1x stream as lzo1x_decompress_safe() does. Returns the bytes written; BM_BAD_DATA
 * for what is no such stream, or needs more room than `capacity`.
 */
int64_t bm_lzo1x_decompress(const uint8_t *in, uint32_t size, uint8_t *out, uint32_t capacity);

/*
 * Compress as zlib_compress_folios() of fs/btrfs/zlib.c does: `in` a page at a time, each with a
 * flush, into pages of output. Returns the bytes written; 0 where the kernel gives up because they
 * do not become fewer, or `capacity` does not hold them; BM_NOMEM. Twice the input and a page always
 * hold them. `level`: 1 to 9. `flushes`: a flush lets out whole bytes of the bits that are held too.
 */
int64_t bm_zlib_compress(const uint8_t *in, uint32_t size, int level, int flushes, uint32_t page,
			 uint8_t *out, uint32_t capacity);

#endif
