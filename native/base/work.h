/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * The work that was done, in the kernel's units and under the names of its functions.
 *
 * Time depends on the machine; how often the kernel calls its functions does not, and that is what a
 * commit changes. Python counts the same: btrfs_model/base/counters.py.
 */
#ifndef BTRFS_MODEL_WORK_H
#define BTRFS_MODEL_WORK_H

#include <stdint.h>

enum bm_counter {
	/* ctree.c */
	BM_WORK_btrfs_search_slot,
	BM_WORK_btrfs_search_old_slot,
	BM_WORK_btrfs_search_slot_for_read,
	BM_WORK_btrfs_search_forward,
	BM_WORK_btrfs_next_old_leaf,
	BM_WORK_btrfs_next_old_item,
	BM_WORK_read_block_for_search,
	BM_WORK_reada_for_search,
	BM_WORK_setup_items_for_insert,
	/* extent_io.c, disk-io.c: tree blocks */
	BM_WORK_btrfs_readahead_node_child,
	BM_WORK_read_tree_block,
	BM_WORK_submit_bio,
	BM_WORK_data_reads,
	/* backref.c, ulist.c */
	BM_WORK_iterate_extent_inodes,
	BM_WORK_extent_from_logical,
	BM_WORK_btrfs_previous_extent_item,
	BM_WORK_btrfs_find_all_leafs,
	BM_WORK_btrfs_find_all_roots_safe,
	BM_WORK_find_parent_nodes,
	BM_WORK_add_prelim_ref,
	BM_WORK_prelim_ref_insert,
	BM_WORK_prelim_ref_compare,
	BM_WORK_is_shared_data_backref,
	BM_WORK_check_extent_in_eb,
	BM_WORK_ulist_add,
	BM_WORK_ulist_add_merge,
	/* sharedness and FIEMAP: backref.c, fiemap.c, extent_io.c before 6.9, inode.c before 6.1 */
	BM_WORK_btrfs_is_data_extent_shared,
	BM_WORK_lookup_backref_shared_cache,
	BM_WORK_store_backref_shared_cache,
	BM_WORK_btrfs_fiemap,
	BM_WORK_emit_fiemap_extent,
	BM_WORK_fiemap_fill_next_extent,
	BM_WORK_fiemap_process_hole,
	BM_WORK_btrfs_get_extent,
	/* send.c */
	BM_WORK_changed_cb,
	BM_WORK_finish_inode_if_needed,
	BM_WORK_process_recorded_refs,
	BM_WORK_send_create_inode,
	BM_WORK_did_create_dir,
	BM_WORK_will_overwrite_ref,
	BM_WORK_did_overwrite_ref,
	BM_WORK_get_inode_info,
	BM_WORK_get_inode_gen,
	BM_WORK_get_cur_inode_state,
	BM_WORK_is_inode_existent,
	BM_WORK_get_first_ref,
	BM_WORK_get_cur_path,
	BM_WORK_get_cur_inode_path,
	BM_WORK___get_cur_name_and_parent,
	BM_WORK_name_cache_search,
	BM_WORK_btrfs_lru_cache_lookup,
	BM_WORK_btrfs_lru_cache_store,
	BM_WORK_get_orphan_dir_info,
	BM_WORK_get_waiting_dir_move,
	BM_WORK_btrfs_lookup_dir_item,
	BM_WORK_btrfs_lookup_xattr,
	BM_WORK_btrfs_lookup_file_extent,
	BM_WORK_tree_advance,
	BM_WORK_can_rmdir,
	BM_WORK_add_orphan_dir_info,
	BM_WORK_is_extent_unchanged,
	BM_WORK_get_last_extent,
	BM_WORK_range_is_hole_in_parent,
	BM_WORK_btrfs_get_next_valid_item,
	BM_WORK_cache_dir_utimes,
	BM_WORK_send_utimes,
	BM_WORK_send_cmd,
	BM_WORK_process_extent,
	BM_WORK_find_extent_clone,
	BM_WORK_send_extent_data,
	/* tree-log.c */
	BM_WORK_btrfs_log_inode,
	BM_WORK_btrfs_sync_log,
	/*
	 * Logs and the tree of the logs: items that are inserted or written over as a whole, and by
	 * how many bytes items grow, headers included; leaves of a directory that is logged, and
	 * insertions into another leaf of a log than the last one; those of these insertions whose
	 * leaf a cache of 32, 16 or 8 MiB has not, see BM_LOG_CACHE; entries in the leaves of a
	 * directory, old ones too; blocks that btrfs_sync_log() writes.
	 */
	BM_WORK_log_items_copied,
	BM_WORK_log_bytes_copied,
	BM_WORK_log_leaves_entered,
	BM_WORK_log_leaves_uncached,
	BM_WORK_log_leaves_uncached_16m,
	BM_WORK_log_leaves_uncached_8m,
	BM_WORK_log_entries_visited,
	BM_WORK_log_dentries_got,
	BM_WORK_copy_extent_buffer,
	BM_WORK_log_leaves_written,
	BM_WORK_log_nodes_written,
	/* walks of the model itself */
	BM_WORK_leaves_visited,
	BM_WORK_nodes_visited,
	BM_WORK_items_visited,
	BM_WORK_subtrees_skipped,
	/* one more than the last */
	BM_WORK_COUNT,
};
/* Counters; what is counted in them is counted in `outer` as well, which may be NULL; of any thread. */
struct bm_work {
	uint64_t counts[BM_WORK_COUNT];
	struct bm_work *outer;
};

#endif
