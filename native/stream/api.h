/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Send streams as they are read: an index of their commands, and the text of `receive --dump`.
 *
 * A stream may be larger than memory, and nothing in it is trusted. So it is read in parts, and a
 * command is verified as a whole before anybody sees it.
 */
#ifndef BTRFS_MODEL_STREAM_API_H
#define BTRFS_MODEL_STREAM_API_H

#include <stdint.h>

#include "base/fault.h"

/*
 * The format of send streams stands in btrfs_model/ondisk/stream.py; these tables say the same
 * (tests/recorded/send/test_stream.py compares them). The number is the index; number 0 is no
 * command and no attribute, of a version that does not exist.
 */
struct bm_stream_command_rule {
	uint64_t mandatory; /* attributes that it must have: bit = number */
	uint32_t version;   /* of the stream that first had it */
};
struct bm_stream_attribute_rule {
	int32_t size; /* of a value in bytes; -1: any */
	uint32_t version;
};
extern const struct bm_stream_command_rule bm_stream_command_rules[27];
extern const struct bm_stream_attribute_rule bm_stream_attribute_rules[36];

/* The commands of a part of a stream, and their attributes, as columns. */
struct bm_stream_columns {
	uint64_t *offset; /* byte of the buffer at which the command's header starts */
	uint32_t *length; /* of what follows the header */
	uint16_t *type;
	uint16_t *version; /* of the stream header before it */
	uint64_t *first;   /* row of the first attribute; has capacity + 1 entries */
	uint16_t *attribute_type;
	uint64_t *attribute_offset; /* byte of the buffer at which the value starts */
	uint32_t *attribute_length;
	uint64_t capacity;
	uint64_t attribute_capacity; /* at least 35: as many as one command can have */
};

/* How far a stream has been read. */
struct bm_stream_position {
	uint64_t offset;  /* byte of the buffer of the next header or command */
	uint64_t wanted;  /* bytes from there on that the next step needs, when there are fewer */
	uint32_t version; /* 0: a stream header has to come next */
	uint32_t ended;	  /* the last command was END */
};

/*
 * Read commands from `position` on until a column is full or the buffer has no whole command
 * left, verify them (lengths, CRC, versions, sizes of values, mandatory attributes) and return how
 * many. The bytes after the buffer's end are read later, or there are none (`last`). What is wrong
 * with a command is reported once it is the first to be read: commands before it are handed out.
 */
int64_t bm_stream_index(const uint8_t *data, uint64_t size, int last,
			struct bm_stream_position *position,
			const struct bm_stream_columns *columns, struct bm_fault *fault);

/* Bytes of a buffer. */
struct bm_span {
	uint64_t at;
	uint64_t size;
};
struct bm_stream_time {
	int64_t seconds;
	uint64_t nanoseconds;
};
enum bm_stream_has { BM_STREAM_OWNERS = 1, BM_STREAM_MODE = 2, BM_STREAM_TIMES = 4 };
/*
 * Commands that make an inode, one behind the other: MKFILE, MKDIR or SYMLINK, its RENAME, WRITEs from
 * its first byte on without a gap, then CHOWN, CHMOD and UTIMES, or some of these. UTIMES on other
 * paths may follow: of directories in which something was made. Where the first command of all is a
 * WRITE, it and what follows are the rest of such an inode.
 */
struct bm_stream_inode {
	uint64_t command; /* the first */
	uint32_t commands;
	uint32_t writes;
	uint32_t type; /* of the first command */
	uint32_t has;  /* enum bm_stream_has */
	uint32_t uid;
	uint32_t gid;
	uint64_t mode;
	struct bm_stream_time atime;
	struct bm_stream_time mtime;
	struct bm_span made;   /* the path under which it is made */
	struct bm_span path;   /* and the one that it gets */
	struct bm_span target; /* of a symbolic link */
	uint64_t made_name;    /* where the last names of the paths begin in them */
	uint64_t name;
	uint64_t start; /* the byte at which the first of the writes begins */
	uint64_t size;	/* of what is written */
	uint64_t piece; /* the first of `writes` pieces */
	uint64_t more;	/* UTIMES on other paths behind the commands, */
	uint64_t first; /* of which this is the first */
};
struct bm_stream_times {
	struct bm_span path;
	struct bm_stream_time atime;
	struct bm_stream_time mtime;
};
/*
 * Find those among the first `count` commands whose paths have `most` bytes at most and nothing but
 * names; inodes[] has room for count / 2 + 1, pieces[] and times[] for `count`. Returns how many
 * there are.
 */
uint64_t bm_stream_inodes(const uint8_t *data, const struct bm_stream_columns *columns,
			  uint64_t count, uint64_t most, struct bm_stream_inode *inodes,
			  struct bm_span *pieces, struct bm_stream_times *times);

/*
 * Commands as lines of text in the form of `btrfs receive --dump`. It remembers the subvolume that
 * paths belong to, so one text serves one stream from its start. Times are local: the caller has
 * called tzset(). With `escape_all` the lines are those of btrfs-progs 6.9.1 and later, otherwise
 * those of the versions before.
 */
struct bm_stream_text;
struct bm_stream_text *bm_stream_text_create(int escape_all);
void bm_stream_text_destroy(struct bm_stream_text *text);
/*
 * Write the lines of the commands [from, to) that fit into `out` (any one fits into 4 MiB); returns
 * how many, `used` says how many bytes that is. Faults as with bm_stream_index.
 */
int64_t bm_stream_text_lines(struct bm_stream_text *text, const uint8_t *data,
			     const struct bm_stream_columns *columns, uint64_t from, uint64_t to,
			     uint8_t *out, uint64_t capacity, uint64_t *used,
			     struct bm_fault *fault);

#endif
