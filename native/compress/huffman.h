/* SPDX-License-Identifier: GPL-2.0-only */
/* Blocks of a deflate stream: literals and matches, and the bits that stand for them. */
#ifndef BTRFS_MODEL_COMPRESS_HUFFMAN_H
#define BTRFS_MODEL_COMPRESS_HUFFMAN_H

#include <stdint.h>

#define MIN_MATCH 3
#define MAX_MATCH 258

#define LITERALS 256
#define END_OF_BLOCK 256
#define LENGTHS 29
#define LITERAL_CODES (LITERALS + 1 + LENGTHS)
#define DISTANCE_CODES 30
#define LENGTH_CODES 19 /* lengths of codes are coded too */
#define MOST_BITS 15
#define MOST_SYMBOLS 16383 /* of a block */

struct huffman_code {
	uint16_t count; /* how often it is used */
	uint16_t bits;
	uint8_t length;
};

/* What is written; `at` counts on where there is no more room. */
struct bit_writer {
	uint8_t *out;
	uint64_t capacity;
	uint64_t at;
	uint64_t aligned; /* `at`, when a byte ended with the bits before */
	uint64_t held;	  /* bits that make no byte yet */
	unsigned int count;
};

/* The block that is being gathered. */
struct block {
	uint32_t count;
	uint32_t matches;
	uint16_t distance[MOST_SYMBOLS]; /* 0: a literal */
	uint8_t value[MOST_SYMBOLS];	 /* the literal, or the length less MIN_MATCH */
	struct huffman_code literals[LITERAL_CODES];
	struct huffman_code distances[DISTANCE_CODES];
};

void bm_put_bits(struct bit_writer *w, uint32_t value, unsigned int count);
/* Write whole bytes of what is held; bm_end_byte() fills the last one up. */
void bm_put_held(struct bit_writer *w);
void bm_end_byte(struct bit_writer *w);

void bm_start_block(struct block *block);
/* Add a literal (distance 0) or a match. */
void bm_add_symbol(struct block *block, uint32_t distance, uint32_t value);
/* Bytes that the block takes by the guess of zlib_tr_tally(). */
uint64_t bm_guess_block(const struct block *block);
/*
 * Write the block in the shortest way, and start another. `data`: the `size` bytes that it stands
 * for; NULL where they are not there any more.
 */
void bm_put_block(struct bit_writer *w, struct block *block, const uint8_t *data, uint32_t size,
		  int last);
/* Write bytes as they are. */
void bm_put_stored(struct bit_writer *w, const uint8_t *data, uint32_t size, int last);

#endif
