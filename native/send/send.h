/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * What the files of the send kernel share: the context of one send (struct send_ctx of the
 * kernel's send.c) and the functions that cross files. Names are the kernel's.
 */
#ifndef BTRFS_MODEL_SEND_H
#define BTRFS_MODEL_SEND_H

#include <stdbool.h>

#include "backref/known.h"
#include "stream/stream.h"

#define TOGGLE(sctx, name) ((sctx)->args->behaviour >> BM_TOGGLE_##name & 1)

enum {
	/* stat.h's, which are not needed otherwise */
	MODE_FMT = 0170000,
	MODE_SOCK = 0140000,
	MODE_LNK = 0120000,
	MODE_REG = 0100000,
	MODE_BLK = 0060000,
	MODE_DIR = 0040000,
	MODE_CHR = 0020000,
	MODE_FIFO = 0010000,
	PATH_LIMIT = 4096, /* PATH_MAX: with the terminating zero */
	SAME_INODES = 256, /* that are remembered as the same in both snapshots */
};

/* A path or a name; not terminated. */
struct fs_path {
	size_t size;
	char text[PATH_LIMIT];
};

/* ------------------------------------------------------------------------------ lru cache -- */

struct lru_entry {
	uint64_t key;
	uint64_t generation;
	struct lru_entry *older, *newer;
	struct lru_entry *chain;
	size_t room; /* bytes, of lru_alloc() */
};

/* Entries by (key, generation), ordered by their last use (lru_cache.c of the kernel). */
struct lru_cache {
	struct lru_entry *oldest, *newest;
	struct lru_entry **buckets;
	size_t bucket_count; /* a power of two */
	size_t size;
	size_t max_size; /* 0: no limit */
	uint64_t moves;	 /* how often an entry became the newest */
	struct lru_entry *spare;
	bool reuses; /* all entries are of lru_alloc() */
};

int lru_init(struct lru_cache *cache, size_t max_size);
void lru_deinit(struct lru_cache *cache);
/*
 * Memory for an entry of a cache all of whose entries come from here: that of one that was removed, where it
 * is enough. NULL: there is none.
 */
struct lru_entry *lru_alloc(struct lru_cache *cache, size_t size);
/* The entry, which becomes the most recently used; NULL when there is none. */
struct lru_entry *lru_lookup(struct lru_cache *cache, uint64_t key, uint64_t generation);
/* Add an entry of malloc'ed memory that is not there yet; evicts the oldest of a full cache. */
void lru_store(struct lru_cache *cache, struct lru_entry *entry);
void lru_remove(struct lru_cache *cache, struct lru_entry *entry);
/* The newest entry becomes the one that is older than `before` and newer than all behind that. */
void lru_move_behind(struct lru_cache *cache, struct lru_entry *before);

/* -------------------------------------------------------------------------------- context -- */

struct inode_info {
	uint64_t size, generation, rdev, flags;
	uint32_t mode, uid, gid, nlink;
};

struct clone_root {
	const struct bm_send_root *source;
	struct bm_root root;
	uint64_t ino, offset, num_bytes;
	bool found_ref;
};

/* A directory that a name was in, and the item that has the name. */
struct dir_ref {
	uint64_t dir, dir_gen;
	struct bm_send_item item;
};

struct dir_refs {
	struct dir_ref *rows;
	size_t count, capacity;
};

/* A new or deleted name of the current inode: the end of the path. */
struct recorded_ref {
	struct dir_ref in;
	size_t name_size, path_size;
	char *path; /* full_path, when it was recorded */
};

struct recorded_refs {
	struct recorded_ref *rows;
	size_t count, capacity;
};

/* A directory whose rename waits for another one's (or for that to be removed). */
struct waiting_dir_move {
	struct lru_entry lru;	       /* by inode number */
	uint64_t rmdir_ino, rmdir_gen; /* a directory that can be removed once this one left it */
	bool orphanized;
};

/* A directory that cannot be removed yet; it has its orphan name. */
struct orphan_dir_info {
	struct lru_entry lru; /* by inode number and, since v5.11, generation */
	uint64_t gen;
	uint64_t last_dir_index_offset;
	uint64_t dir_high_seq_ino;
};

/* A compressed extent that was decompressed last. */
struct plain_extent {
	uint64_t disk_bytenr;
	uint8_t *data;
	size_t size, capacity;
};

/*
 * The directory that a path led through last, while what the name cache has of its own path stays the
 * newest there: its name at `lowest`, then the one above.
 */
struct dir_path {
	uint64_t ino, gen;
	uint64_t moves; /* of the name cache */
	uint64_t until; /* beyond it, send_progress makes a name outdated */
	struct lru_entry *lowest;
	size_t depth; /* names; 0: there is no such directory */
	struct fs_path path;
};

/* What did_create_dir() found while it went over a large directory (send/created.c). */
struct created_scan {
	uint64_t dir;	   /* of which the rest tells; 0: none */
	uint64_t long_dir; /* the last one that took long; 0: none */
	uint64_t *lowest;  /* the lowest inode number up to each entry */
	size_t count, capacity;
	struct created_leaf *leaves;
	size_t leaf_count, leaf_capacity;
	uint64_t *whole; /* the work of going over all of it */
};

/* Two leaves that are compared, and what is known of their items, or is found out. */
struct leaf_pair {
	const uint8_t *left, *right;
	const struct known_runs *known;
	size_t next; /* row of it */
	struct known_run *rows;
	size_t count, capacity;
};

struct send_ctx {
	const struct bm_send_args *args;
	struct bm_image *image;
	struct bm_fault *fault;
	struct bm_root root;   /* send_root */
	struct bm_root parent; /* parent_root; no image: a full send */
	struct bm_root csum_root;
	struct bm_near near, near_parent, near_csums; /* of these three */
	struct clone_root *clone_roots; /* ascending by root id, the send root among them */
	size_t clone_root_count;

	/* the stream: whole commands up to `cmd`, the present one from there */
	uint8_t *buf;
	size_t size, capacity, cmd;
	size_t max_size; /* of a command */
	size_t summed;	 /* bytes of the present command that its checksum has by now */
	uint32_t crc;
	struct bm_crc_shift after_sector;

	struct bm_compare *compare; /* the walk over both trees; NULL: a full send */
	struct bm_path walk;	    /* that of a full send */
	/* the item that the walk stands on, in the snapshot and in its parent */
	const uint8_t *leaf, *right_leaf;
	uint32_t slot, right_slot;
	struct bm_key key;
	enum bm_change result;

	enum bm_change inode_change; /* of the item of the current inode */
	struct bm_send_why why;	     /* of the command being made */

	uint64_t cur_ino, cur_inode_gen, cur_inode_size, cur_inode_rdev, cur_inode_flags;
	uint64_t cur_inode_next_write_offset;
	uint64_t cur_inode_last_extent; /* end of the last extent seen; UINT64_MAX: not known */
	uint64_t send_progress;
	uint32_t cur_inode_mode;
	bool cur_inode_new, cur_inode_new_gen, cur_inode_deleted;
	bool ignore_cur_inode;
	bool cur_inode_needs_verity;
	bool cur_inode_open;	       /* its data was read before */
	struct fs_path cur_inode_path; /* empty: not known */

	struct recorded_refs new_refs, deleted_refs;

	struct dir_path dir_path;
	struct lru_cache name_cache, dir_created_cache, dir_utimes_cache, backref_cache;
	/* by inode number; the order of use does not matter in these */
	struct lru_cache orphan_dirs, waiting_dir_moves, pending_dir_moves;
	struct plain_extent plain;
	uint8_t *sector; /* one that lies nowhere on disk; NULL: none was needed */
	struct created_scan created;
	struct leaf_pair pair;
	/* the csum item in which the last look-up ended: [csum_start, csum_end) are covered */
	uint64_t csum_start, csum_end;
	const uint8_t *csums;
	uint64_t same_dirs[SAME_INODES]; /* of the same generation in both snapshots, by number */
	struct same_inode {
		uint64_t ino, gen;
	} same_inodes[SAME_INODES];	   /* that both have, in the same way */
	uint64_t mapped_start, mapped_end; /* the extent whose mapping is in memory */
};

static inline bool is_type(uint32_t mode, uint32_t type)
{
	return (mode & MODE_FMT) == type;
}

/* Nobody looks at the data that are sent. */
static inline bool size_only(const struct send_ctx *sctx)
{
	return sctx->args->flags & BM_SEND_SIZE_ONLY;
}

static inline bool has_parent(const struct send_ctx *sctx)
{
	return sctx->parent.image != NULL;
}

/* Whether a directory is known to be the same in both snapshots; a search may read. */
static inline bool is_in_same_dir(const struct send_ctx *sctx, uint64_t dir)
{
	return dir && dir == sctx->same_dirs[dir % SAME_INODES] && !sctx->image->cache;
}

/* A path for a search. */
static inline struct bm_path alloc_path_for_send(const struct send_ctx *sctx)
{
	return (struct bm_path){.restart = !TOGGLE(sctx, SEARCH_NO_RESTART),
				.reada_missing = !TOGGLE(sctx, READA_ALWAYS_CACHED)};
}

/* Commands from here on are sent by this rule, about that inode, because of that item. */
static inline void because(struct send_ctx *sctx, enum bm_send_cause cause, uint64_t ino,
			   struct bm_send_item item)
{
	if (sctx->args->explained)
		sctx->why = (struct bm_send_why){.inode = ino, .item = item, .cause = cause};
}

/* send/context.c: the state, and what waits in it */
int send_ctx_init(struct send_ctx *sctx, const struct bm_send_args *args, struct bm_fault *fault);
void send_ctx_deinit(struct send_ctx *sctx);
/* Fail as the kernel would, with an errno. */
int send_errno(struct send_ctx *sctx, int error);
/* Fail because the item that the search of `path` ended at is not as it must be. */
int send_bad_item(struct send_ctx *sctx, int code, const uint8_t *leaf, uint32_t slot,
		  uint64_t found, uint64_t wanted);
/* The item that the walk stands on. */
struct bm_send_item walk_item(const struct send_ctx *sctx);
/* .. about the current inode, because of its inode item. */
void because_inode(struct send_ctx *sctx, enum bm_send_cause cause);
/* .. by another rule, for the same reason otherwise. */
void because_of_rule(struct send_ctx *sctx, enum bm_send_cause cause);
/* Add an entry of malloc'ed memory, or fail where there is none. */
int lru_add(struct send_ctx *sctx, struct lru_cache *cache, struct lru_entry *entry, uint64_t key,
	    uint64_t generation);
struct waiting_dir_move *get_waiting_dir_move(struct send_ctx *sctx, uint64_t ino);
bool is_waiting_for_move(struct send_ctx *sctx, uint64_t ino);
struct orphan_dir_info *get_orphan_dir_info(struct send_ctx *sctx, uint64_t ino, uint64_t gen);
bool is_waiting_for_rm(struct send_ctx *sctx, uint64_t ino, uint64_t gen);
/* The entry of a directory that was there before, or a new one. */
struct orphan_dir_info *add_orphan_dir_info(struct send_ctx *sctx, uint64_t ino, uint64_t gen);
void free_orphan_dir_info(struct send_ctx *sctx, struct orphan_dir_info *info);

/* send/names.c: inodes and names as the trees have them; find_...(): 1 where there is nothing */
void fs_path_copy(struct fs_path *dest, const struct fs_path *from);
int fs_path_add(struct send_ctx *sctx, struct fs_path *path, const char *name, size_t size);
/* Put a name in front of a path. */
int fs_path_prepend(struct send_ctx *sctx, struct fs_path *path, const struct fs_path *name);
/* Fail where a walk upwards takes so many steps that it cannot end. */
int check_depth(struct send_ctx *sctx, int depth, const struct bm_root *root, uint64_t ino);
/* The item of an inode; 1: there is none. */
int find_inode_item(struct send_ctx *sctx, const struct bm_root *root, uint64_t ino,
		    const uint8_t **found);
int find_inode_info(struct send_ctx *sctx, const struct bm_root *root, uint64_t ino,
		    struct inode_info *info);
int get_inode_info(struct send_ctx *sctx, const struct bm_root *root, uint64_t ino,
		   struct inode_info *info);
/* Whether a search for the current inode was made before, and ended so; its work is counted. */
bool was_searched(struct send_ctx *sctx, enum known_search search);
/* It did. */
void set_searched(struct send_ctx *sctx, enum known_search search);
int find_inode_gen(struct send_ctx *sctx, const struct bm_root *root, uint64_t ino, uint64_t *gen);
int get_inode_gen(struct send_ctx *sctx, const struct bm_root *root, uint64_t ino, uint64_t *gen);
/* To the item that `path` stands on or, past the end of a leaf, the next: 0, or 1 at the end. */
int btrfs_get_next_valid_item(struct send_ctx *sctx, const struct bm_root *root,
			      struct bm_path *path);
/* The next (or first, with *at = 0) entry of a dir item or xattr item; 0 at the end. */
int iterate_dir_item(struct send_ctx *sctx, const uint8_t *leaf, uint32_t slot, uint32_t *at,
		     const struct btrfs_dir_item **entry);
/* A name of an INODE_REF or INODE_EXTREF item. */
struct ref_name {
	uint64_t dir;
	const char *name;
	size_t size;
};
/* The next (or first, with *at = 0) name of such an item; 0 at the end. */
int iterate_inode_ref(struct send_ctx *sctx, const uint8_t *leaf, uint32_t slot, uint32_t *at,
		      struct ref_name *ref);
/* The directory entry or xattr of that name in the item of `path`; NULL: none. */
int lookup_name(struct send_ctx *sctx, const struct bm_root *root, const struct bm_key *key,
		const char *name, size_t size, const struct btrfs_dir_item **entry);
int gen_unique_name(struct send_ctx *sctx, uint64_t ino, uint64_t gen, struct fs_path *dest);
/* The first name of an inode and its directory. *dir_gen unless it is NULL. */
int find_first_ref(struct send_ctx *sctx, const struct bm_root *root, uint64_t ino, uint64_t *dir,
		   struct fs_path *name);
int get_first_ref(struct send_ctx *sctx, const struct bm_root *root, uint64_t ino, uint64_t *dir,
		  uint64_t *dir_gen, struct fs_path *name);
int is_first_ref(struct send_ctx *sctx, uint64_t ino, uint64_t dir, const char *name, size_t size);
/* The path of an inode in a root that is not being sent, by first names. */
int get_inode_path(struct send_ctx *sctx, const struct bm_root *root, uint64_t ino,
		   struct fs_path *dest);
enum inode_state {
	INODE_NO_CHANGE,
	INODE_WILL_CREATE,
	INODE_DID_CREATE,
	INODE_WILL_DELETE,
	INODE_DID_DELETE,
};
int get_cur_inode_state(struct send_ctx *sctx, uint64_t ino, uint64_t gen);
/* In which roots an inode exists, and with which generation (0: it does not). */
struct inode_generations {
	bool in_send, in_parent;
	uint64_t send, parent;
};
/* 1: the receiver has the inode at this moment. *found stays as it is for the top directory. */
int is_inode_existent(struct send_ctx *sctx, uint64_t ino, uint64_t gen,
		      struct inode_generations *found);
/* An inode that would be, or was, overwritten. */
struct overwritten {
	uint64_t ino, gen;
	uint32_t mode;
};
/* 1: in the parent snapshot an inode that is still to be processed has the name. */
int will_overwrite_ref(struct send_ctx *sctx, const struct dir_ref *in, const char *name,
		       size_t size, struct overwritten *who);
/* 1: an inode that was processed before has taken the name. */
int did_overwrite_ref(struct send_ctx *sctx, const struct dir_ref *in, uint64_t ino, uint64_t gen,
		      const char *name, size_t size);
int did_overwrite_first_ref(struct send_ctx *sctx, uint64_t ino, uint64_t gen);

/* send/paths.c: paths as the receiver has them at this moment */
/* A name in the name cache that is not to be used any more. */
void name_cache_delete(struct send_ctx *sctx, uint64_t ino, uint64_t gen);
int get_cur_name_and_parent(struct send_ctx *sctx, uint64_t ino, uint64_t gen, uint64_t *parent_ino,
			    uint64_t *parent_gen, struct fs_path *name);
int get_cur_path(struct send_ctx *sctx, uint64_t ino, uint64_t gen, struct fs_path *dest);
/* get_cur_path() of the current inode, from memory where it is kept there */
int get_cur_inode_path(struct send_ctx *sctx, const struct fs_path **path);

/* send/command.c: the stream */
int begin_cmd(struct send_ctx *sctx, int cmd);
int tlv_put(struct send_ctx *sctx, int attribute, const void *data, size_t size);
int tlv_put_u64(struct send_ctx *sctx, int attribute, uint64_t value);
int tlv_put_u32(struct send_ctx *sctx, int attribute, uint32_t value);
int tlv_put_path(struct send_ctx *sctx, int attribute, const struct fs_path *path);
/* The header of the DATA attribute and room for `size` bytes, which the caller fills. */
uint8_t *put_data(struct send_ctx *sctx, size_t size);
/* The checksum goes on over the next bytes of the command. */
void sum_command(struct send_ctx *sctx, const uint8_t *next, size_t size);
/* The end of a command, whose bytes go on; send_cmd() is a call of the kernel's, too. */
int write_cmd(struct send_ctx *sctx);
int send_cmd(struct send_ctx *sctx);
int send_flush(struct send_ctx *sctx);
/* The next bytes of the stream go to who asked. */
int hand_out(struct send_ctx *sctx, const uint8_t *data, size_t size);
int send_rename(struct send_ctx *sctx, const struct fs_path *path, const struct fs_path *to);
int send_link(struct send_ctx *sctx, const struct fs_path *path, const struct fs_path *existing);
int send_unlink(struct send_ctx *sctx, const struct fs_path *path);
int send_rmdir(struct send_ctx *sctx, const struct fs_path *path);
int send_truncate(struct send_ctx *sctx, uint64_t size);
int send_chmod(struct send_ctx *sctx, uint32_t mode);
int send_fileattr(struct send_ctx *sctx, uint64_t flags);
int send_chown(struct send_ctx *sctx, uint64_t uid, uint64_t gid);
int send_update_extent(struct send_ctx *sctx, uint64_t offset, uint32_t size);

/* send/created.c */
int cache_dir_created(struct send_ctx *sctx, uint64_t dir);
/* 1: the directory was created already, out of its turn, as the parent of a lower inode. */
int did_create_dir(struct send_ctx *sctx, uint64_t dir);
void created_scan_deinit(struct created_scan *scan);

/* send/inode.c: inodes and their times */
int send_create_inode(struct send_ctx *sctx, uint64_t ino);
int send_create_inode_if_needed(struct send_ctx *sctx);
int send_utimes(struct send_ctx *sctx, uint64_t ino, uint64_t gen);
/* UTIMES of a directory: put off until it is not likely to change any more, or at once. */
int cache_dir_utimes(struct send_ctx *sctx, uint64_t dir, uint64_t gen);
int trim_dir_utimes_cache(struct send_ctx *sctx);
/* Those that are still to be sent, of the most recently used directory first. */
int flush_dir_utimes(struct send_ctx *sctx);

/* send/record.c: names are recorded */
int changed_ref(struct send_ctx *sctx);
/* 1: a directory in which the names of an unchanged item are is another one than in the parent. */
int compare_refs(struct send_ctx *sctx);
/* The work to find out, so many times, of INODE_REF items that is_in_same_dir(). */
void count_same_dirs(struct send_ctx *sctx, uint64_t times);
/* All names of the current inode in the snapshot or, BM_CHANGE_DELETED, in its parent. */
int record_all_refs(struct send_ctx *sctx, enum bm_change change);
int btrfs_unlink_all_paths(struct send_ctx *sctx);
void free_recorded_refs(struct recorded_refs *refs);
int add_dir_ref(struct send_ctx *sctx, struct dir_refs *refs, const struct dir_ref *ref);
const char *ref_name(const struct recorded_ref *ref);
void ref_path(const struct recorded_ref *ref, struct fs_path *path);
/* An ancestor may have got its orphan name since the name was recorded. */
int update_ref_path(struct send_ctx *sctx, struct recorded_ref *ref);

/* send/moves.c: directories that move or go, but not yet */
/* 1: every entry of a directory of the parent snapshot has been processed. */
int can_rmdir(struct send_ctx *sctx, uint64_t dir, uint64_t dir_gen);
/* 1: it was removed. */
int rmdir_if_possible(struct send_ctx *sctx, uint64_t ino, uint64_t gen, enum bm_send_cause cause,
		      struct bm_send_item item);
/* 1: the current directory cannot be renamed into `ref` yet; it waits. */
int wait_for_dest_dir_move(struct send_ctx *sctx, const struct recorded_ref *ref, bool is_orphan);
int wait_for_parent_move(struct send_ctx *sctx, const struct recorded_ref *ref, bool is_orphan);
/* 1: in the parent snapshot (ino1, gen1) is above ino2 by one of its names. */
int is_ancestor(struct send_ctx *sctx, uint64_t ino1, uint64_t gen1, uint64_t ino2);
int apply_children_dir_moves(struct send_ctx *sctx);
void free_pending_dir_moves(struct send_ctx *sctx);

/* send/refs.c: names are made and unmade */
/* *pending_move is set where the rename has to wait. */
int process_recorded_refs(struct send_ctx *sctx, bool *pending_move);
int process_all_refs(struct send_ctx *sctx, enum bm_change change);

/* send/data.c: reading file data */
struct file_extent {
	uint64_t start; /* in the file */
	uint64_t end;	/* btrfs_file_extent_end() */
	uint64_t disk_bytenr, disk_num_bytes, offset, num_bytes, ram_bytes, generation;
	uint8_t type, compression;
	const uint8_t *inline_data;
	uint32_t inline_size;
};
int parse_file_extent(struct send_ctx *sctx, const uint8_t *leaf, uint32_t slot,
		      struct file_extent *extent);
/* `size` bytes of the file from `offset` on, all inside `extent`. */
int read_extent_data(struct send_ctx *sctx, const struct file_extent *extent, uint64_t offset,
		     uint8_t *out, size_t size);
/* The bytes of an extent as they are on disk. */
int read_raw_extent(struct send_ctx *sctx, const struct file_extent *extent, uint8_t *out);
/* What a kernel searches before it can read the data: inode, extent map. */
int open_for_data(struct send_ctx *sctx, const struct file_extent *extent);

/* send/clone.c: *found is where the extent can be cloned from, or NULL */
int find_extent_clone(struct send_ctx *sctx, const struct file_extent *extent,
		      struct clone_root **found);
/* The place that was chosen for the extent of the next command is not to be used, for this. */
void refuse_chosen_place(struct send_ctx *sctx, enum bm_send_verdict verdict);

/* send/hole.c: what need not be sent, and holes where data was */
int is_extent_unchanged(struct send_ctx *sctx, const struct file_extent *extent);
int maybe_send_hole(struct send_ctx *sctx);
/* Whether the two items of the walk differ in nothing but where the data lie. */
bool has_only_moved(const struct send_ctx *sctx);
/* The hole at the end of a file. */
int send_trailing_hole(struct send_ctx *sctx);

/* send/extent.c: what becomes of an extent */
int process_all_extents(struct send_ctx *sctx);
int process_extent(struct send_ctx *sctx);

/* send/xattr.c: extended attributes, fs-verity */
int changed_xattr(struct send_ctx *sctx);
int send_capabilities(struct send_ctx *sctx);
int process_verity(struct send_ctx *sctx);
int process_all_new_xattrs(struct send_ctx *sctx);

/* send/send.c: the path of the walk over the tree of a full send */
struct bm_path full_send_path(const struct send_ctx *sctx);

/* send/plain.c: 1 when the walk was that of a full send, 0 when that cannot be told. */
int send_plain_reads(struct send_ctx *sctx);

#endif
