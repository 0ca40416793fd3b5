/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * The on-disk format of btrfs as C structs.
 *
 * Every structure is packed and little endian. A tree block of nodesize N is a header of 101 bytes
 * followed either by key pointers (a node) or by item headers (a leaf):
 *
 *   node:  | header | key_ptr 0 | key_ptr 1 | ...                      | unused |
 *   leaf:  | header | item 0 | item 1 | ... |  free  | ... | data 1 | data 0 |
 *
 * The data of a leaf is packed from its end downwards in item order; `offset` of an item counts
 * from byte 101 of the block. The same structures stand in btrfs_model/ondisk/ for Python;
 * tests/twins/test_ondisk.py holds the two to the same sizes and offsets.
 *
 * This file is read by the C compiler and by cffi, so it holds nothing but declarations.
 */
#ifndef BTRFS_MODEL_ONDISK_H
#define BTRFS_MODEL_ONDISK_H

#include <stdint.h>

#if !defined(__BYTE_ORDER__) || __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "btrfs_model reads little-endian structures in place and needs a little-endian host"
#endif

#pragma pack(push, 1)

/* 17 bytes */
struct btrfs_disk_key {
	uint64_t objectid; /* 0 */
	uint8_t type;	   /* 8 */
	uint64_t offset;   /* 9 */
};

/* 101 bytes */
struct btrfs_header {
	uint8_t csum[32];	     /* 0 */
	uint8_t fsid[16];	     /* 32 */
	uint64_t bytenr;	     /* 48 */
	uint64_t flags;		     /* 56 */
	uint8_t chunk_tree_uuid[16]; /* 64 */
	uint64_t generation;	     /* 80 */
	uint64_t owner;		     /* 88 */
	uint32_t nritems;	     /* 96 */
	uint8_t level;		     /* 100 */
};

/* 25 bytes */
struct btrfs_item {
	struct btrfs_disk_key key; /* 0 */
	uint32_t offset;	   /* 17 */
	uint32_t size;		   /* 21 */
};

/* 33 bytes */
struct btrfs_key_ptr {
	struct btrfs_disk_key key; /* 0 */
	uint64_t blockptr;	   /* 17 */
	uint64_t generation;	   /* 25 */
};

/* 98 bytes */
struct btrfs_dev_item {
	uint64_t devid;	       /* 0 */
	uint64_t total_bytes;  /* 8 */
	uint64_t bytes_used;   /* 16 */
	uint32_t io_align;     /* 24 */
	uint32_t io_width;     /* 28 */
	uint32_t sector_size;  /* 32 */
	uint64_t type;	       /* 36 */
	uint64_t generation;   /* 44 */
	uint64_t start_offset; /* 52 */
	uint32_t dev_group;    /* 60 */
	uint8_t seek_speed;    /* 64 */
	uint8_t bandwidth;     /* 65 */
	uint8_t uuid[16];      /* 66 */
	uint8_t fsid[16];      /* 82 */
};

/* 168 bytes */
struct btrfs_root_backup {
	uint64_t tree_root;	   /* 0 */
	uint64_t tree_root_gen;	   /* 8 */
	uint64_t chunk_root;	   /* 16 */
	uint64_t chunk_root_gen;   /* 24 */
	uint64_t extent_root;	   /* 32 */
	uint64_t extent_root_gen;  /* 40 */
	uint64_t fs_root;	   /* 48 */
	uint64_t fs_root_gen;	   /* 56 */
	uint64_t dev_root;	   /* 64 */
	uint64_t dev_root_gen;	   /* 72 */
	uint64_t csum_root;	   /* 80 */
	uint64_t csum_root_gen;	   /* 88 */
	uint64_t total_bytes;	   /* 96 */
	uint64_t bytes_used;	   /* 104 */
	uint64_t num_devices;	   /* 112 */
	uint64_t unused_64[4];	   /* 120 */
	uint8_t tree_root_level;   /* 152 */
	uint8_t chunk_root_level;  /* 153 */
	uint8_t extent_root_level; /* 154 */
	uint8_t fs_root_level;	   /* 155 */
	uint8_t dev_root_level;	   /* 156 */
	uint8_t csum_root_level;   /* 157 */
	uint8_t unused_8[10];	   /* 158 */
};

/* 4096 bytes */
struct btrfs_super_block {
	uint8_t csum[32];			 /* 0 */
	uint8_t fsid[16];			 /* 32 */
	uint64_t bytenr;			 /* 48 */
	uint64_t flags;				 /* 56 */
	uint64_t magic;				 /* 64 */
	uint64_t generation;			 /* 72 */
	uint64_t root;				 /* 80 */
	uint64_t chunk_root;			 /* 88 */
	uint64_t log_root;			 /* 96 */
	uint64_t unused_log_root_transid;	 /* 104 */
	uint64_t total_bytes;			 /* 112 */
	uint64_t bytes_used;			 /* 120 */
	uint64_t root_dir_objectid;		 /* 128 */
	uint64_t num_devices;			 /* 136 */
	uint32_t sectorsize;			 /* 144 */
	uint32_t nodesize;			 /* 148 */
	uint32_t unused_leafsize;		 /* 152 */
	uint32_t stripesize;			 /* 156 */
	uint32_t sys_chunk_array_size;		 /* 160 */
	uint64_t chunk_root_generation;		 /* 164 */
	uint64_t compat_flags;			 /* 172 */
	uint64_t compat_ro_flags;		 /* 180 */
	uint64_t incompat_flags;		 /* 188 */
	uint16_t csum_type;			 /* 196 */
	uint8_t root_level;			 /* 198 */
	uint8_t chunk_root_level;		 /* 199 */
	uint8_t log_root_level;			 /* 200 */
	struct btrfs_dev_item dev_item;		 /* 201 */
	char label[256];			 /* 299 */
	uint64_t cache_generation;		 /* 555 */
	uint64_t uuid_tree_generation;		 /* 563 */
	uint8_t metadata_uuid[16];		 /* 571 */
	uint64_t nr_global_roots;		 /* 587 */
	uint64_t reserved[27];			 /* 595 */
	uint8_t sys_chunk_array[2048];		 /* 811 */
	struct btrfs_root_backup super_roots[4]; /* 2859 */
	uint8_t padding[565];			 /* 3531 */
};

/* 32 bytes */
struct btrfs_stripe {
	uint64_t devid;	      /* 0 */
	uint64_t offset;      /* 8 */
	uint8_t dev_uuid[16]; /* 16 */
};

/* 80 bytes */
struct btrfs_chunk {
	uint64_t length;	    /* 0 */
	uint64_t owner;		    /* 8 */
	uint64_t stripe_len;	    /* 16 */
	uint64_t type;		    /* 24 */
	uint32_t io_align;	    /* 32 */
	uint32_t io_width;	    /* 36 */
	uint32_t sector_size;	    /* 40 */
	uint16_t num_stripes;	    /* 44 */
	uint16_t sub_stripes;	    /* 46 */
	struct btrfs_stripe stripe; /* 48 */
};

/* 24 bytes */
struct btrfs_extent_item {
	uint64_t refs;	     /* 0 */
	uint64_t generation; /* 8 */
	uint64_t flags;	     /* 16 */
};

/* 18 bytes */
struct btrfs_tree_block_info {
	struct btrfs_disk_key key; /* 0 */
	uint8_t level;		   /* 17 */
};

/* 28 bytes */
struct btrfs_extent_data_ref {
	uint64_t root;	   /* 0 */
	uint64_t objectid; /* 8 */
	uint64_t offset;   /* 16 */
	uint32_t count;	   /* 24 */
};

/* 4 bytes */
struct btrfs_shared_data_ref {
	uint32_t count; /* 0 */
};

/* 9 bytes */
struct btrfs_extent_inline_ref {
	uint8_t type;	 /* 0 */
	uint64_t offset; /* 1 */
};

/* 8 bytes */
struct btrfs_extent_owner_ref {
	uint64_t root_id; /* 0 */
};

/* 48 bytes */
struct btrfs_dev_extent {
	uint64_t chunk_tree;	     /* 0 */
	uint64_t chunk_objectid;     /* 8 */
	uint64_t chunk_offset;	     /* 16 */
	uint64_t length;	     /* 24 */
	uint8_t chunk_tree_uuid[16]; /* 32 */
};

/* 10 bytes */
struct btrfs_inode_ref {
	uint64_t index;	   /* 0 */
	uint16_t name_len; /* 8 */
};

/* 18 bytes */
struct btrfs_inode_extref {
	uint64_t parent_objectid; /* 0 */
	uint64_t index;		  /* 8 */
	uint16_t name_len;	  /* 16 */
};

/* 12 bytes */
struct btrfs_timespec {
	uint64_t sec;  /* 0 */
	uint32_t nsec; /* 8 */
};

/* 160 bytes */
struct btrfs_inode_item {
	uint64_t generation;	     /* 0 */
	uint64_t transid;	     /* 8 */
	uint64_t size;		     /* 16 */
	uint64_t nbytes;	     /* 24 */
	uint64_t block_group;	     /* 32 */
	uint32_t nlink;		     /* 40 */
	uint32_t uid;		     /* 44 */
	uint32_t gid;		     /* 48 */
	uint32_t mode;		     /* 52 */
	uint64_t rdev;		     /* 56 */
	uint64_t flags;		     /* 64 */
	uint64_t sequence;	     /* 72 */
	uint64_t reserved[4];	     /* 80 */
	struct btrfs_timespec atime; /* 112 */
	struct btrfs_timespec ctime; /* 124 */
	struct btrfs_timespec mtime; /* 136 */
	struct btrfs_timespec otime; /* 148 */
};

/* 8 bytes */
struct btrfs_dir_log_item {
	uint64_t end; /* 0 */
};

/* 30 bytes */
struct btrfs_dir_item {
	struct btrfs_disk_key location; /* 0 */
	uint64_t transid;		/* 17 */
	uint16_t data_len;		/* 25 */
	uint16_t name_len;		/* 27 */
	uint8_t type;			/* 29 */
};

/* 439 bytes */
struct btrfs_root_item {
	struct btrfs_inode_item inode;	     /* 0 */
	uint64_t generation;		     /* 160 */
	uint64_t root_dirid;		     /* 168 */
	uint64_t bytenr;		     /* 176 */
	uint64_t byte_limit;		     /* 184 */
	uint64_t bytes_used;		     /* 192 */
	uint64_t last_snapshot;		     /* 200 */
	uint64_t flags;			     /* 208 */
	uint32_t refs;			     /* 216 */
	struct btrfs_disk_key drop_progress; /* 220 */
	uint8_t drop_level;		     /* 237 */
	uint8_t level;			     /* 238 */
	uint64_t generation_v2;		     /* 239 */
	uint8_t uuid[16];		     /* 247 */
	uint8_t parent_uuid[16];	     /* 263 */
	uint8_t received_uuid[16];	     /* 279 */
	uint64_t ctransid;		     /* 295 */
	uint64_t otransid;		     /* 303 */
	uint64_t stransid;		     /* 311 */
	uint64_t rtransid;		     /* 319 */
	struct btrfs_timespec ctime;	     /* 327 */
	struct btrfs_timespec otime;	     /* 339 */
	struct btrfs_timespec stime;	     /* 351 */
	struct btrfs_timespec rtime;	     /* 363 */
	uint64_t reserved[8];		     /* 375 */
};

/* 18 bytes */
struct btrfs_root_ref {
	uint64_t dirid;	   /* 0 */
	uint64_t sequence; /* 8 */
	uint16_t name_len; /* 16 */
};

/* 53 bytes */
struct btrfs_file_extent_item {
	uint64_t generation;	 /* 0 */
	uint64_t ram_bytes;	 /* 8 */
	uint8_t compression;	 /* 16 */
	uint8_t encryption;	 /* 17 */
	uint16_t other_encoding; /* 18 */
	uint8_t type;		 /* 20 */
	uint64_t disk_bytenr;	 /* 21 */
	uint64_t disk_num_bytes; /* 29 */
	uint64_t offset;	 /* 37 */
	uint64_t num_bytes;	 /* 45 */
};

/* 24 bytes */
struct btrfs_block_group_item {
	uint64_t used;		 /* 0 */
	uint64_t chunk_objectid; /* 8 */
	uint64_t flags;		 /* 16 */
};

/* 8 bytes */
struct btrfs_free_space_info {
	uint32_t extent_count; /* 0 */
	uint32_t flags;	       /* 4 */
};

/* 41 bytes */
struct btrfs_free_space_header {
	struct btrfs_disk_key location; /* 0 */
	uint64_t generation;		/* 17 */
	uint64_t num_entries;		/* 25 */
	uint64_t num_bitmaps;		/* 33 */
};

/* 17 bytes */
struct btrfs_free_space_entry {
	uint64_t offset; /* 0 */
	uint64_t bytes;	 /* 8 */
	uint8_t type;	 /* 16 */
};

/* 40 bytes */
struct btrfs_dev_stats_item {
	uint64_t values[5]; /* 0 */
};

/* 25 bytes */
struct btrfs_verity_descriptor_item {
	uint64_t size;	      /* 0 */
	uint64_t reserved[2]; /* 8 */
	uint8_t encryption;   /* 24 */
};
#pragma pack(pop)

enum btrfs_objectid {
	BTRFS_ROOT_TREE_OBJECTID = 1,
	BTRFS_EXTENT_TREE_OBJECTID = 2,
	BTRFS_CHUNK_TREE_OBJECTID = 3,
	BTRFS_DEV_TREE_OBJECTID = 4,
	BTRFS_FS_TREE_OBJECTID = 5,
	BTRFS_ROOT_TREE_DIR_OBJECTID = 6,
	BTRFS_CSUM_TREE_OBJECTID = 7,
	BTRFS_QUOTA_TREE_OBJECTID = 8,
	BTRFS_UUID_TREE_OBJECTID = 9,
	BTRFS_FREE_SPACE_TREE_OBJECTID = 10,
	BTRFS_BLOCK_GROUP_TREE_OBJECTID = 11,
	BTRFS_RAID_STRIPE_TREE_OBJECTID = 12,
	BTRFS_FIRST_FREE_OBJECTID = 256,
};

enum btrfs_key_type {
	BTRFS_INODE_ITEM_KEY = 1,
	BTRFS_INODE_REF_KEY = 12,
	BTRFS_INODE_EXTREF_KEY = 13,
	BTRFS_XATTR_ITEM_KEY = 24,
	BTRFS_VERITY_DESC_ITEM_KEY = 36,
	BTRFS_VERITY_MERKLE_ITEM_KEY = 37,
	BTRFS_ORPHAN_ITEM_KEY = 48,
	BTRFS_DIR_LOG_ITEM_KEY = 60,
	BTRFS_DIR_LOG_INDEX_KEY = 72,
	BTRFS_DIR_ITEM_KEY = 84,
	BTRFS_DIR_INDEX_KEY = 96,
	BTRFS_EXTENT_DATA_KEY = 108,
	BTRFS_EXTENT_CSUM_KEY = 128,
	BTRFS_ROOT_ITEM_KEY = 132,
	BTRFS_ROOT_BACKREF_KEY = 144,
	BTRFS_ROOT_REF_KEY = 156,
	BTRFS_EXTENT_ITEM_KEY = 168,
	BTRFS_METADATA_ITEM_KEY = 169,
	BTRFS_EXTENT_OWNER_REF_KEY = 172,
	BTRFS_TREE_BLOCK_REF_KEY = 176,
	BTRFS_EXTENT_DATA_REF_KEY = 178,
	BTRFS_SHARED_BLOCK_REF_KEY = 182,
	BTRFS_SHARED_DATA_REF_KEY = 184,
	BTRFS_BLOCK_GROUP_ITEM_KEY = 192,
	BTRFS_FREE_SPACE_INFO_KEY = 198,
	BTRFS_FREE_SPACE_EXTENT_KEY = 199,
	BTRFS_FREE_SPACE_BITMAP_KEY = 200,
	BTRFS_DEV_EXTENT_KEY = 204,
	BTRFS_DEV_ITEM_KEY = 216,
	BTRFS_CHUNK_ITEM_KEY = 228,
	BTRFS_UUID_KEY_SUBVOL = 251,
	BTRFS_UUID_KEY_RECEIVED_SUBVOL = 252,
};

enum btrfs_file_type {
	BTRFS_FT_UNKNOWN = 0,
	BTRFS_FT_REG_FILE = 1,
	BTRFS_FT_DIR = 2,
	BTRFS_FT_CHRDEV = 3,
	BTRFS_FT_BLKDEV = 4,
	BTRFS_FT_FIFO = 5,
	BTRFS_FT_SOCK = 6,
	BTRFS_FT_SYMLINK = 7,
	BTRFS_FT_XATTR = 8,
};

enum btrfs_file_extent_type {
	BTRFS_FILE_EXTENT_INLINE = 0,
	BTRFS_FILE_EXTENT_REG = 1,
	BTRFS_FILE_EXTENT_PREALLOC = 2,
};

enum btrfs_compression {
	BTRFS_COMPRESS_NONE = 0,
	BTRFS_COMPRESS_ZLIB = 1,
	BTRFS_COMPRESS_LZO = 2,
	BTRFS_COMPRESS_ZSTD = 3,
};

enum btrfs_csum_type {
	BTRFS_CSUM_TYPE_CRC32 = 0,
	BTRFS_CSUM_TYPE_XXHASH = 1,
	BTRFS_CSUM_TYPE_SHA256 = 2,
	BTRFS_CSUM_TYPE_BLAKE2 = 3,
};

enum btrfs_extent_flag {
	BTRFS_EXTENT_FLAG_DATA = 1,
	BTRFS_EXTENT_FLAG_TREE_BLOCK = 2,
	BTRFS_BLOCK_FLAG_FULL_BACKREF = 256,
};

enum btrfs_sizes {
	BTRFS_SUPER_INFO_OFFSET = 65536,
	BTRFS_SUPER_INFO_SIZE = 4096,
	BTRFS_HEADER_SIZE = 101,
	BTRFS_ITEM_SIZE = 25,
	BTRFS_KEY_PTR_SIZE = 33,
	BTRFS_CSUM_SIZE = 32,
	BTRFS_MAX_LEVEL = 8,
	/* file_extent_item up to the first byte of inline data */
	BTRFS_FILE_EXTENT_INLINE_DATA_START = 21,
};

#endif
