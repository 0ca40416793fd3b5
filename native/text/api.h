/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Tree blocks as text, by a form: what stands around the fields of structures, and how each field is
 * written. The form is made from the tables of btrfs_model/questions/dumptree; C follows it and
 * knows only how numbers, keys, names and times are written.
 */
#ifndef BTRFS_MODEL_TEXT_API_H
#define BTRFS_MODEL_TEXT_API_H

#include <stdint.h>

#include "base/fault.h"
#include "ondisk.h"

/* How a field is written, or which step comes next. */
enum bm_text_how {
	BM_TEXT_END,
	/* a structure of `value` bytes comes next, of which `least` must be there; others are 0 */
	BM_TEXT_STRUCTURE,
	BM_TEXT_BACK,  /* what comes next starts `value` bytes before */
	BM_TEXT_COUNT, /* the field says how many turns there are */
	/* write the field at `place` */
	BM_TEXT_LITERAL, /* no field, just the text before it */
	BM_TEXT_DECIMAL,
	BM_TEXT_SIGNED,
	BM_TEXT_OCTAL,
	BM_TEXT_HEX,
	BM_TEXT_BYTES,	  /* in hexadecimal */
	BM_TEXT_UUID,	  /* the same with dashes */
	BM_TEXT_TIME,	  /* seconds since 1970 as local time */
	BM_TEXT_UTC,	  /* a time as UTC */
	BM_TEXT_PATH,	  /* of a row */
	BM_TEXT_OBJECTID, /* by name, where it has one */
	BM_TEXT_KEY,	  /* objectid, type and offset */
	BM_TEXT_KEY_OBJECTID,
	BM_TEXT_WORD, /* a word for the number, as the caller says */
	/* write the bytes after the structure up to a NUL, and be behind them */
	BM_TEXT_NAME,	/* as many as the field says; the first 255 are shown */
	BM_TEXT_STRING, /* the same, all are shown, even where names are hidden */
	BM_TEXT_REST,	/* all that are left */
	BM_TEXT_SUMS,	/* the checksums in the rest of the payload */
	/* go on `jump` steps further */
	BM_TEXT_UNLESS,	     /* unless the field & `mask` is `value` */
	BM_TEXT_UNLESS_SAME, /* unless the field is the same as that at the place `value` */
	BM_TEXT_IF_MORE,     /* if there is more of the payload; one more turn is counted */
	BM_TEXT_IF_TURNS,    /* if there are more turns; one more is counted */
	BM_TEXT_BAD,	     /* it is an error that the field has this value */
};

struct bm_text_step {
	uint32_t text; /* in the form's texts: what is written before, */
	uint16_t size; /* and how many bytes */
	uint8_t how;
	uint8_t width; /* of the field */
	uint16_t place;
	uint16_t in_item; /* the place is one of struct bm_text_item, not of the structure */
	uint16_t word;
	uint16_t least;
	int32_t jump;
	uint64_t value;
	uint64_t mask;
};

/* What is known of an item, or of a block, beside its structure. */
struct bm_text_item {
	uint8_t key[17]; /* as in struct btrfs_disk_key */
	uint64_t slot;
	uint64_t rest;	     /* bytes of the payload that no structure has taken yet */
	uint64_t turn;	     /* counted from 0 */
	uint64_t turns;	     /* how many there are */
	uint64_t length;     /* of an EXTENT_CSUM: bytes of data that the checksums are of, */
	uint64_t end;	     /* and where they end */
	uint64_t free_space; /* of a block */
	uint64_t flags;
	uint64_t revision;
};

/* Where the steps for something begin; 0: nothing is written. Types of items come first. */
enum bm_text_start {
	BM_TEXT_LEAF = 256,
	BM_TEXT_NODE,
	BM_TEXT_ITEM,
	BM_TEXT_POINTER,
	BM_TEXT_ROW,
	BM_TEXT_STARTS,
};

/* Words that the caller has beside those of BM_TEXT_WORD, which count from BM_TEXT_WORDS on. */
enum bm_text_word {
	BM_TEXT_NO_WORD,
	BM_TEXT_OBJECTID_WORD, /* of: objectid, type of the key or 0 */
	BM_TEXT_TYPE_WORD,     /* of: type, objectid if the type is 0 */
	BM_TEXT_OFFSET_WORD,   /* of: offset, type, objectid of a type that is not plain, else 0 */
	BM_TEXT_TIME_WORD,     /* of: a second without a usual date */
	BM_TEXT_UTC_WORD,      /* the same of one as UTC */
	BM_TEXT_NAME_WORD,     /* of: address of the block, place in it, bytes; or of: row */
	BM_TEXT_WORDS,
};

/* A form, and what was asked of the caller so far; the arrays are copied. */
struct bm_text;
struct bm_text_form {
	const struct bm_text_step *steps;
	uint32_t step_count;
	const uint8_t *texts;
	uint32_t text_size;
	uint32_t starts[261]; /* enum bm_text_start */
	uint8_t plain[256];   /* types with numbers in their keys but for objects near 0 and -1 */
	uint32_t sectorsize;
	uint32_t csum_size;
	int32_t hide_names;
	int32_t escape_names; /* ask how a name with anything but printable ASCII is shown */
};
struct bm_text *bm_text_create(const struct bm_text_form *form);
void bm_text_destroy(struct bm_text *text);

/* A word that the caller is to say. */
struct bm_text_question {
	uint64_t of[3];
	uint32_t word; /* BM_TEXT_NO_WORD: none */
};
/* Answer; words are remembered, as many as there is room for. */
int bm_text_answer(struct bm_text *text, const struct bm_text_question *question,
		   const uint8_t *answer, uint64_t size, struct bm_fault *fault);
/*
 * Write a verified tree block: part 0 is its head, the others are the items or pointers in `count`
 * slots (NULL: the first ones). Begins with part `from` and returns the part to go on with, which is
 * none (`count` + 1), or one that does not fit any more, or about which there is a question. `used` says how many bytes were written. Times are local: the caller has called tzset().
 */
int64_t bm_text_block(struct bm_text *text, const uint8_t *block, uint32_t nodesize,
		      const uint16_t *slots, uint32_t count, uint32_t from, uint8_t *out,
		      uint64_t capacity, uint64_t *used, struct bm_text_question *question,
		      struct bm_fault *fault);

/* Files: of each row the structure, and its path: a directory's, and a name. */
struct bm_text_rows {
	const uint8_t *structures; /* `width` bytes each */
	uint32_t width;
	const uint32_t *structure;
	const uint8_t *paths;	   /* of directories, one behind the other */
	const uint64_t *path_ends; /* 0, and the end of each */
	const uint32_t *directory;
	const uint8_t *names;
	const uint64_t *name; /* where the row's begins */
	const uint16_t *name_size;
};
/* Write the rows from `from` on, as bm_text_block() writes parts. */
int64_t bm_text_rows(struct bm_text *text, const struct bm_text_rows *rows, uint64_t count,
		     uint64_t from, uint8_t *out, uint64_t capacity, uint64_t *used,
		     struct bm_text_question *question, struct bm_fault *fault);

#endif
