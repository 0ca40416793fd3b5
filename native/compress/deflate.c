// SPDX-License-Identifier: GPL-2.0-only
/*
 * zlib streams as the kernel writes them: lib/zlib_deflate, which split from zlib long ago and ends
 * blocks elsewhere than today's, called as fs/btrfs/zlib.c calls it. A page of input and a page of
 * output at a time: where a page of output is full in the middle of a block, its flush is left out.
 *
 * What is written beyond the pages that there are waits (`pending` in the kernel); here all of it is
 * in one piece already, and `given` says how much has left.
 */
#include <stdlib.h>
#include <string.h>

#include "compress/api.h"
#include "compress/huffman.h"

#define WINDOW 32768U
#define WINDOW_MASK (WINDOW - 1)
#define HASH_SIZE 32768U
#define LOOKAHEAD (MAX_MATCH + MIN_MATCH + 1U) /* so much is looked at, while there is more */
#define FURTHEST (WINDOW - LOOKAHEAD)
#define TOO_FAR 4096 /* for a match of three bytes */
#define GUESSED 4096 /* symbols after which it is asked whether to end a block */
#define GIVE_UP 8192 /* bytes after which they must have become fewer */
#define ADLER 65521U

/* What levels differ in. */
static const struct {
	uint16_t good, lazy, nice, chain;
	int waits; /* whether a match waits for a better one a byte further */
} levels[] = {
    {0},
    {4, 4, 8, 4, 0},
    {4, 5, 16, 8, 0},
    {4, 6, 32, 32, 0},
    {4, 4, 16, 16, 1},
    {8, 16, 32, 32, 1},
    {8, 16, 128, 128, 1},
    {8, 32, 128, 256, 1},
    {32, 128, 258, 1024, 1},
    {32, 258, 258, 4096, 1},
};

enum ended {
	NEED_MORE,
	DONE,
};

struct deflater {
	const uint8_t *in;
	uint32_t left;	/* of the page of input */
	uint32_t taken; /* bytes that are in the window */
	uint32_t adler;
	struct bit_writer w;
	uint64_t given;
	uint64_t room; /* bytes of the pages of output */
	int level;
	int flushes; /* whether whole bytes of bits that are held are let out too */
	uint8_t window[2 * WINDOW];
	uint16_t before[WINDOW];  /* where the hash of a place was before */
	uint16_t head[HASH_SIZE]; /* where a hash was last, 0: nowhere */
	uint32_t hash;
	uint32_t at;	/* in the window, */
	uint32_t ahead; /* bytes from there on */
	int32_t block_start;
	uint32_t length, match; /* the match that was found at `at`, */
	uint32_t old_length;	/* and at the byte before */
	int waits;		/* the byte before waits to become a literal or a match */
	struct block block;
};

static void add_to_hash(struct deflater *d, uint8_t byte)
{
	d->hash = (d->hash << 5 ^ byte) & (HASH_SIZE - 1);
}

/* Remember a place; where its three bytes were before, 0: nowhere. */
static uint32_t remember(struct deflater *d, uint32_t at)
{
	uint32_t last;

	add_to_hash(d, d->window[at + MIN_MATCH - 1]);
	last = d->head[d->hash];
	d->before[at & WINDOW_MASK] = (uint16_t)last;
	d->head[d->hash] = (uint16_t)at;
	return last;
}

static void start_hash(struct deflater *d)
{
	d->hash = d->window[d->at];
	add_to_hash(d, d->window[d->at + 1]);
}

static void slide_places(uint16_t *places, uint32_t count)
{
	for (uint32_t i = 0; i < count; i++)
		places[i] = (uint16_t)(places[i] >= WINDOW ? places[i] - WINDOW : 0);
}

static void add_to_adler(struct deflater *d, const uint8_t *data, uint32_t size)
{
	uint32_t low = d->adler & 0xffff, high = d->adler >> 16;

	for (uint32_t i = 0; i < size; i++) {
		low = (low + data[i]) % ADLER;
		high = (high + low) % ADLER;
	}
	d->adler = high << 16 | low;
}

static void fill_window(struct deflater *d)
{
	do {
		uint32_t size = 2 * WINDOW - d->ahead - d->at;

		if (d->at >= WINDOW + FURTHEST) {
			memcpy(d->window, d->window + WINDOW, WINDOW);
			d->match -= WINDOW;
			d->at -= WINDOW;
			d->block_start -= (int32_t)WINDOW;
			slide_places(d->head, HASH_SIZE);
			slide_places(d->before, WINDOW);
			size += WINDOW;
		}
		if (!d->left)
			return;
		size = size < d->left ? size : d->left;
		memcpy(d->window + d->at + d->ahead, d->in, size);
		add_to_adler(d, d->in, size);
		d->in += size;
		d->left -= size;
		d->taken += size;
		d->ahead += size;
		if (d->ahead >= MIN_MATCH)
			start_hash(d);
	} while (d->ahead < LOOKAHEAD && d->left);
}

/* Find the longest match at `at` longer than `old_length`, from `place` on back. */
static uint32_t longest_match(struct deflater *d, uint32_t place)
{
	const uint8_t *here = d->window + d->at;
	uint32_t best = d->old_length, chain = levels[d->level].chain;
	uint32_t most = d->ahead < MAX_MATCH ? d->ahead : MAX_MATCH;
	uint32_t nice = d->ahead < levels[d->level].nice ? d->ahead : levels[d->level].nice;
	uint32_t limit = d->at > FURTHEST ? d->at - FURTHEST : 0;

	if (d->old_length >= levels[d->level].good)
		chain >>= 2;
	do {
		const uint8_t *there = d->window + place;
		uint32_t length = 0;

		if (there[best] != here[best] || there[best - 1] != here[best - 1])
			continue;
		while (length < most && there[length] == here[length])
			length++;
		if (length > best) {
			d->match = place;
			best = length;
			if (length >= nice)
				break;
		}
	} while ((place = d->before[place & WINDOW_MASK]) > limit && --chain);
	return best < d->ahead ? best : d->ahead;
}

/* Add a literal or a match; whether the block ends here. */
static int add_symbol(struct deflater *d, uint32_t distance, uint32_t value)
{
	struct block *block = &d->block;

	bm_add_symbol(block, distance, value);
	if (!(block->count % GUESSED) && d->level > 2 && block->matches < block->count / 2) {
		uint32_t size = (uint32_t)((int32_t)d->at - d->block_start);

		if (bm_guess_block(block) < size / 2)
			return 1;
	}
	return block->count == MOST_SYMBOLS;
}

/*
 * Let out what is written, as far as there is room; whether all room is taken. Bits are held in 16
 * and written when there are more.
 */
static int give(struct deflater *d)
{
	uint64_t there, bits;

	bm_put_held(&d->w);
	there = d->w.at;
	bits = 8 * (there - d->w.aligned) + d->w.count;
	if (!d->flushes && bits)
		there = d->w.aligned + (bits - 1) / 16 * 2;
	d->given = there < d->room ? there : d->room;
	return d->given == d->room;
}

static int end_block(struct deflater *d, int last)
{
	const uint8_t *data = d->block_start >= 0 ? d->window + d->block_start : NULL;

	bm_put_block(&d->w, &d->block, data, (uint32_t)((int32_t)d->at - d->block_start), last);
	d->block_start = (int32_t)d->at;
	return give(d);
}

/* Levels 1 to 3: each match is taken as it is found. */
static enum ended deflate_fast(struct deflater *d, int last)
{
	uint32_t place = 0;

	for (;;) {
		int ends;

		if (d->ahead < LOOKAHEAD) {
			fill_window(d);
			if (!d->ahead)
				break;
		}
		if (d->ahead >= MIN_MATCH)
			place = remember(d, d->at);
		if (place && d->at - place <= FURTHEST)
			d->length = longest_match(d, place);
		if (d->length >= MIN_MATCH) {
			ends = add_symbol(d, d->at - d->match, d->length - MIN_MATCH);
			d->ahead -= d->length;
			if (d->length <= levels[d->level].lazy && d->ahead >= MIN_MATCH) {
				while (--d->length)
					place = remember(d, ++d->at);
				d->at++;
			} else {
				d->at += d->length;
				d->length = 0;
				start_hash(d);
			}
		} else {
			ends = add_symbol(d, 0, d->window[d->at]);
			d->ahead--;
			d->at++;
		}
		if (ends && end_block(d, 0))
			return NEED_MORE;
	}
	return end_block(d, last) ? NEED_MORE : DONE;
}

/* Take the match of the byte before; whether the block ends. */
static int take_old_match(struct deflater *d, uint32_t old_match, uint32_t *place)
{
	uint32_t most = d->at + d->ahead - MIN_MATCH;
	int ends = add_symbol(d, d->at - 1 - old_match, d->old_length - MIN_MATCH);

	d->ahead -= d->old_length - 1;
	for (d->old_length -= 2; d->old_length; d->old_length--)
		if (++d->at <= most)
			*place = remember(d, d->at);
	d->waits = 0;
	d->length = MIN_MATCH - 1;
	d->at++;
	return ends;
}

/* Levels 4 to 9: a match is taken where there is none longer a byte further. */
static enum ended deflate_slow(struct deflater *d, int last)
{
	uint32_t place = 0;

	for (;;) {
		uint32_t old_match;

		if (d->ahead < LOOKAHEAD) {
			fill_window(d);
			if (!d->ahead)
				break;
		}
		if (d->ahead >= MIN_MATCH)
			place = remember(d, d->at);
		old_match = d->match;
		d->old_length = d->length;
		d->length = MIN_MATCH - 1;
		if (place && d->old_length < levels[d->level].lazy && d->at - place <= FURTHEST) {
			d->length = longest_match(d, place);
			if (d->length == MIN_MATCH && d->at - d->match > TOO_FAR)
				d->length = MIN_MATCH - 1;
		}
		if (d->old_length >= MIN_MATCH && d->length <= d->old_length) {
			if (take_old_match(d, old_match, &place) && end_block(d, 0))
				return NEED_MORE;
			continue;
		}
		if (d->waits) {
			int full = add_symbol(d, 0, d->window[d->at - 1]) && end_block(d, 0);

			d->at++;
			d->ahead--;
			if (full)
				return NEED_MORE;
			continue;
		}
		d->waits = 1;
		d->at++;
		d->ahead--;
	}
	if (d->waits) {
		add_symbol(d, 0, d->window[d->at - 1]);
		d->waits = 0;
	}
	return end_block(d, last) ? NEED_MORE : DONE;
}

static enum ended deflate(struct deflater *d, int last)
{
	return levels[d->level].waits ? deflate_slow(d, last) : deflate_fast(d, last);
}

static void put_big_endian(struct deflater *d, uint32_t value)
{
	bm_put_bits(&d->w, value >> 8 & 0xff, 8);
	bm_put_bits(&d->w, value & 0xff, 8);
}

static void start(struct deflater *d)
{
	uint32_t flags = (uint32_t)(d->level - 1) >> 1;
	uint32_t header = 0x78U << 8 | (flags > 3 ? 3 : flags) << 6;

	d->adler = 1;
	d->length = d->old_length = MIN_MATCH - 1;
	bm_start_block(&d->block);
	put_big_endian(d, header + 31 - header % 31);
	bm_end_byte(&d->w);
}

/* zlib_deflate() with Z_SYNC_FLUSH; the page of output has room. */
static void flush(struct deflater *d)
{
	/* what waits from the last call comes first */
	if (give(d) || deflate(d, 0) == NEED_MORE)
		return;
	bm_put_stored(&d->w, NULL, 0, 0);
	give(d);
}

/* Compress `size` bytes; whether they become fewer. */
static int compress_pages(struct deflater *d, uint32_t size, uint32_t page)
{
	while (d->taken < size) {
		if (!d->left)
			d->left = size - d->taken < page ? size - d->taken : page;
		flush(d);
		if (d->taken > GIVE_UP && d->taken < d->given)
			return 0;
		if (d->given == d->room)
			d->room += page;
	}
	/* pages of output decide nothing any more */
	d->room = UINT64_MAX;
	give(d);
	deflate(d, 1);
	put_big_endian(d, d->adler >> 16);
	put_big_endian(d, d->adler);
	give(d);
	return d->w.at < size;
}

int64_t bm_zlib_compress(const uint8_t *in, uint32_t size, int level, int flushes, uint32_t page,
			 uint8_t *out, uint32_t capacity)
{
	struct deflater *d = calloc(1, sizeof(*d));
	int64_t written;

	if (!d)
		return BM_NOMEM;
	d->in = in;
	d->level = level;
	d->flushes = flushes;
	d->w.out = out;
	d->w.capacity = capacity;
	d->room = page;
	start(d);
	written = compress_pages(d, size, page) && d->w.at <= capacity ? (int64_t)d->w.at : 0;
	free(d);
	return written;
}
