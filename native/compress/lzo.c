// SPDX-License-Identifier: GPL-2.0-only
/*
 * lzo1x, the compressor as Linux has it (lib/lzo) and a decompressor that trusts no byte.
 *
 * A stream is a row of literals and of matches, copies of what came before. The low two bits of a
 * match say how many literals (up to three) follow it. A match of distance 0 that is as long as
 * the end marker says ends the stream.
 *
 *	first byte	what it begins
 *	0 to 15		literals, or after literals a match of two or three bytes
 *	16 to 31	a match further than 16 KiB back
 *	32 to 63	a match up to 16 KiB back
 *	64 to 255	a match of up to 8 bytes, up to 2 KiB back
 */
#include <string.h>

#include "compress/api.h"

#define HASH_BITS 13
#define HASH_FACTOR 0x1824429dU

#define NEAR_DISTANCE 0x800    /* of a match in two bytes, */
#define NEAR_LENGTH 8	       /* and its length */
#define MIDDLE_DISTANCE 0x4000 /* of a match in three bytes or more */
#define MIDDLE_LENGTH 33       /* that its first byte has room for */
#define FAR_LENGTH 9	       /* the same of what is further away */
#define MOST_DISTANCE 0xbfff   /* so much is compressed with one table */
#define MIDDLE_MARK 32
#define FAR_MARK 16
#define FIRST_MARK 17 /* literals at the start: this, and how many */
#define LEAST_LEFT 20 /* the last bytes are always literals */

struct lzo_writer {
	const uint8_t *in;
	uint32_t size;
	uint8_t *out;
	uint32_t at;   /* in `out` */
	uint32_t last; /* where in `out` the low bits are that count up to three literals */
	uint16_t table[1 << HASH_BITS];
};

static uint32_t four_bytes(const uint8_t *p)
{
	return p[0] | (uint32_t)p[1] << 8 | (uint32_t)p[2] << 16 | (uint32_t)p[3] << 24;
}

static void put(struct lzo_writer *w, uint32_t byte)
{
	w->out[w->at++] = (uint8_t)byte;
}

/* What does not fit into the first byte: zeros, each for 255, and the rest. */
static void put_rest(struct lzo_writer *w, uint32_t number)
{
	for (; number > 255; number -= 255)
		put(w, 0);
	put(w, number);
}

static void put_literals(struct lzo_writer *w, uint32_t from, uint32_t count)
{
	if (!count)
		return;
	if (!w->at && count <= 238 && from + count == w->size) {
		put(w, FIRST_MARK + count);
	} else if (count <= 3) {
		w->out[w->last] |= (uint8_t)count;
	} else if (count <= 18) {
		put(w, count - 3);
	} else {
		put(w, 0);
		put_rest(w, count - 18);
	}
	memcpy(w->out + w->at, w->in + from, count);
	w->at += count;
}

static void put_match(struct lzo_writer *w, uint32_t distance, uint32_t length)
{
	if (length <= NEAR_LENGTH && distance <= NEAR_DISTANCE) {
		distance--;
		put(w, (length - 1) << 5 | (distance & 7) << 2);
		put(w, distance >> 3);
	} else {
		uint32_t mark = MIDDLE_MARK, most = MIDDLE_LENGTH;

		if (distance <= MIDDLE_DISTANCE) {
			distance--;
		} else {
			distance -= MIDDLE_DISTANCE;
			mark = FAR_MARK | (distance >> 11 & 8);
			most = FAR_LENGTH;
		}
		if (length <= most) {
			put(w, mark | (length - 2));
		} else {
			put(w, mark);
			put_rest(w, length - most);
		}
		put(w, distance << 2);
		put(w, distance >> 6);
	}
	w->last = w->at - 2;
}

/*
 * How long the match at `from` with `before` is. The kernel compares 8 bytes at a time and looks
 * only then whether it is near the end, where it takes them as they are.
 */
static uint32_t match_length(const uint8_t *in, uint32_t from, uint32_t before, uint32_t end)
{
	uint32_t length = 4;

	while (!memcmp(in + from + length, in + before + length, 8)) {
		length += 8;
		if (from + length >= end)
			return length;
	}
	while (in[from + length] == in[before + length])
		length++;
	return length;
}

/*
 * Compress the bytes [from, from + size) with a table of their own; `waiting` bytes before them are
 * literals that are not written yet. Returns how many are so at the end.
 */
static uint32_t compress_part(struct lzo_writer *w, uint32_t from, uint32_t size, uint32_t waiting)
{
	const uint8_t *in = w->in + from;
	uint32_t end = size - LEAST_LEFT;
	uint32_t literals = 0; /* where they begin, but for those that wait */
	uint32_t at = (waiting < 4 ? 4 - waiting : 0);

	memset(w->table, 0, sizeof(w->table));
	/* the longer nothing is found, the larger the steps */
	at += 1 + (at >> 5);
	while (at < end) {
		uint32_t value = four_bytes(in + at);
		uint16_t *slot = &w->table[value * HASH_FACTOR >> (32 - HASH_BITS)];
		uint32_t before = *slot, length;

		*slot = (uint16_t)at;
		if (value != four_bytes(in + before)) {
			at += 1 + ((at - literals) >> 5);
			continue;
		}
		put_literals(w, from + literals - waiting, at - literals + waiting);
		waiting = 0;
		length = match_length(in, at, before, end);
		put_match(w, at - before, length);
		at += length;
		literals = at;
	}
	return size - literals + waiting;
}

int64_t bm_lzo1x_compress(const uint8_t *in, uint32_t size, uint8_t *out)
{
	struct lzo_writer w = {.in = in, .size = size, .out = out};
	uint32_t from = 0, waiting = 0;

	while (size - from > LEAST_LEFT) {
		uint32_t part = size - from;

		if (part > MOST_DISTANCE + 1)
			part = MOST_DISTANCE + 1;
		waiting = compress_part(&w, from, part, waiting);
		from += part;
	}
	waiting += size - from;
	put_literals(&w, size - waiting, waiting);
	put(&w, FAR_MARK | 1);
	put(&w, 0);
	put(&w, 0);
	return w.at;
}

struct lzo_reader {
	const uint8_t *in;
	uint32_t size;
	uint32_t at;
	uint8_t *out;
	uint32_t capacity;
	uint32_t done;
	int bad;
};

/* The next byte; none is 0, and remembered. */
static uint32_t get(struct lzo_reader *r)
{
	if (r->at < r->size)
		return r->in[r->at++];
	r->bad = 1;
	return 0;
}

/* Undo put_rest(). */
static uint32_t get_rest(struct lzo_reader *r)
{
	uint64_t number = 0;
	uint32_t byte;

	while (!(byte = get(r)) && !r->bad)
		number += 255;
	number += byte;
	if (number > r->capacity)
		r->bad = 1;
	return r->bad ? 0 : (uint32_t)number;
}

static void copy_literals(struct lzo_reader *r, uint32_t count)
{
	/* no stream ends with them */
	if (r->bad || r->size - r->at < count || r->capacity - r->done < count) {
		r->bad = 1;
		return;
	}
	memcpy(r->out + r->done, r->in + r->at, count);
	r->at += count;
	r->done += count;
}

static void copy_match(struct lzo_reader *r, uint32_t distance, uint32_t length)
{
	if (r->bad || distance > r->done || r->capacity - r->done < length) {
		r->bad = 1;
		return;
	}
	for (; length; length--, r->done++)
		r->out[r->done] = r->out[r->done - distance];
}

/* A match whose first byte is `mark`; returns its low bits, -1 where it is the end. */
static int get_match(struct lzo_reader *r, uint32_t mark, int after_literals)
{
	uint32_t low, distance, length;

	if (mark >= 64) {
		low = mark;
		distance = (mark >> 2 & 7) + (get(r) << 3) + 1;
		length = (mark >> 5) + 1;
	} else if (mark < 16) {
		low = mark;
		distance = (mark >> 2) + (get(r) << 2) + 1 + (after_literals ? NEAR_DISTANCE : 0);
		length = after_literals ? 3 : 2;
	} else {
		uint32_t mask = mark >= 32 ? 31 : 7;

		length = (mark & mask) + 2;
		if (length == 2)
			length += get_rest(r) + mask;
		low = get(r);
		distance = low >> 2 | get(r) << 6;
		if (mark >= 32) {
			distance++;
		} else {
			distance |= (mark & 8) << 11;
			if (!distance) {
				r->bad |= length != 3 || r->at != r->size;
				return -1;
			}
			distance += MIDDLE_DISTANCE;
		}
	}
	copy_match(r, distance, length);
	return low & 3;
}

int64_t bm_lzo1x_decompress(const uint8_t *in, uint32_t size, uint8_t *out, uint32_t capacity)
{
	struct lzo_reader r = {.in = in, .size = size, .out = out, .capacity = capacity};
	int literals = 0; /* how many came before: 4 stands for more than 3 */

	if (size && in[0] > FIRST_MARK) {
		uint32_t count = get(&r) - FIRST_MARK;

		copy_literals(&r, count);
		literals = count < 4 ? (int)count : 4;
	}
	while (!r.bad) {
		uint32_t mark = get(&r);

		if (mark < 16 && !literals) {
			copy_literals(&r, mark ? mark + 3 : get_rest(&r) + 18);
			literals = 4;
			continue;
		}
		literals = get_match(&r, mark, literals == 4);
		if (literals < 0)
			break;
		copy_literals(&r, (uint32_t)literals);
	}
	return r.bad ? BM_BAD_DATA : (int64_t)r.done;
}
