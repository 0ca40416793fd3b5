// SPDX-License-Identifier: GPL-2.0-only
// Trees: searched, asked who refers to what, and compared.

const EXTENT_TREE = form.objects.EXTENT_TREE;
const FILE = "btrfs_file_extent_item", INLINE = "btrfs_extent_inline_ref";
const sizeOf = name => form.structs[name].size;
const fieldOf = (struct, name, block, at) => {
  const [place, width] = form.structs[struct].fields[name];
  return load(block, at + place, width);
};

// The way to the first item that is not before a key: of each block address and slot. In the last
// slot there is none where all items come before.
async function search(tree, key) {
  const path = [];
  let address = tree.root, ahead = null;
  for (let level = tree.level;; level--) {
    const block = await blockOn(level, address, tree.state), count = countOf(block);
    let low = 0, high = count;
    while (low < high) {
      const middle = low + high >> 1;
      if (compareKeys(keyAt(block, middle), key) < 0) low = middle + 1;
      else high = middle;
    }
    if (levelOf(block)) {
      // the child before, unless it begins with this very key
      if (low && (low === count || compareKeys(keyAt(block, low), key) > 0)) low--;
      if (low + 1 < count) ahead = [...path, {address, slot: low + 1}];
      path.push({address, slot: low});
      if (!count) return path;
      address = childAt(block, low);
      continue;
    }
    path.push({address, slot: low});
    if (low < count || !ahead) return path;
    // the first item of the next leaf
    const next = ahead.at(-1);
    return firstBelow(ahead, await blockAt(next.address, tree.state), next.slot, tree.state);
  }
}

async function firstBelow(path, node, slot, state) {
  for (;;) {
    const address = childAt(node, slot), block = await blockOn(levelOf(node) - 1, address, state);
    path = [...path, {address, slot: 0}];
    if (!levelOf(block)) return path;
    [node, slot] = [block, 0];
  }
}

// The item that a search found, or null.
async function found(path) {
  const {address, slot} = path.at(-1), block = await blockAt(address);
  return slot < countOf(block) ? {address, slot, block, key: keyAt(block, slot)} : null;
}

// Items of a tree from a key on.
async function* itemsFrom(tree, key) {
  for (let path = await search(tree, key);;) {
    const {address, slot} = path.at(-1), block = await blockAt(address, tree.state);
    for (let next = slot; next < countOf(block); next++)
      yield {address, slot: next, block, key: keyAt(block, next)};
    for (path = path.slice(0, -1); path.length; path = path.slice(0, -1)) {
      const up = path.at(-1), node = await blockAt(up.address, tree.state);
      if (up.slot + 1 >= countOf(node)) continue;
      const way = [...path.slice(0, -1), {address: up.address, slot: up.slot + 1}];
      path = await firstBelow(way, node, up.slot + 1, tree.state);
      break;
    }
    if (!path.length) return;
  }
}

// ---------------------------------------------------------------------------- who refers to it --

// Who points at each block: blocks and slots.
function parents(state = shown) {
  state.parents ||= (async () => {
    const above = new Map(), nodes = new Map();
    for (const address of state.places.keys()) {
      const block = await blockAt(address, state);
      if (!levelOf(block)) break; // nodes come first
      nodes.set(address, block);
    }
    for (const [address, block] of nodes) {
      for (let slot = 0; slot < countOf(block); slot++) {
        const child = childAt(block, slot), level = nodes.has(child) ? levelOf(nodes.get(child)) : 0;
        if (level !== levelOf(block) - 1) continue; // damage, which may lead around in a loop
        if (!above.has(child)) above.set(child, []);
        above.get(child).push({address, slot});
      }
    }
    return above;
  })();
  return state.parents;
}

// The trees that a block is part of.
async function treesWith(address) {
  const above = await parents(), seen = new Set([address]);
  for (const one of seen) for (const parent of above.get(one) || []) seen.add(parent.address);
  return shown.trees.filter(tree => seen.has(tree.root));
}

// The way from a tree's root to a block; null where it is not in the tree.
async function wayTo(tree, address) {
  const above = await parents();
  const climb = at => {
    if (at === tree.root) return [];
    for (const parent of above.get(at) || []) {
      const way = climb(parent.address);
      if (way) return [...way, parent];
    }
    return null;
  };
  return climb(address);
}

// The extent that holds an address: its item in the extent tree, or null.
async function extentAt(address) {
  const tree = treeOf(EXTENT_TREE);
  if (!tree) return null;
  // the item before (address, 255, -1)
  const path = await search(tree, [address, 255, U64 - 1n]);
  let {address: leaf, slot} = path.at(-1);
  let block = await blockAt(leaf);
  for (let back = 0; back < 64; back++) {
    if (!slot) {
      const first = keyAt(block, 0);
      const before = await lastBefore(tree, first);
      if (!before) return null;
      ({address: leaf, slot} = before);
      block = await blockAt(leaf);
    } else slot--;
    const [start, type, offset] = keyAt(block, slot);
    const size = type === types.METADATA_ITEM ? BigInt(block.length) : offset;
    if (type === types.EXTENT_ITEM || type === types.METADATA_ITEM)
      return address < start + size ? {address: leaf, slot, block, key: [start, type, offset]} : null;
  }
  return null;
}

// The last item of a tree that is before a key, or null.
async function lastBefore(tree, key) {
  let address = tree.root, best = null;
  for (let level = tree.level;; level--) {
    const block = await blockOn(level, address, tree.state);
    let low = 0, high = countOf(block);
    while (low < high) {
      const middle = low + high >> 1;
      if (compareKeys(keyAt(block, middle), key) < 0) low = middle + 1;
      else high = middle;
    }
    if (!low) return best;
    if (!levelOf(block)) return {address, slot: low - 1};
    address = childAt(block, low - 1);
  }
}

// Who refers to a data extent: rows of tree, inode, offset of the file extent, leaf, slot. As the
// references of its items say, and every tree with the leaf: shared leaves are counted once there.
async function fileExtents(bytenr) {
  const extents = treeOf(EXTENT_TREE), leaves = new Map(), rows = [];
  const add = (leaf, slot) => leaves.set(`${leaf} ${slot}`, {leaf, slot});
  const isOf = (block, slot) => {
    const [start, size] = payloadAt(block, slot);
    const isExtent = keyAt(block, slot)[1] === types.EXTENT_DATA && size >= sizeOf(FILE);
    return isExtent && fieldOf(FILE, "type", block, start) &&
      fieldOf(FILE, "disk_bytenr", block, start) === bytenr;
  };
  async function keyed(root, inode, offset) {
    const tree = treeOf(BigInt.asUintN(64, root));
    if (!tree) return;
    // the reference has the offset of the file less that in the extent, which wraps around
    for await (const item of itemsFrom(tree, [inode, types.EXTENT_DATA, 0n])) {
      if (item.key[0] !== inode || item.key[1] !== types.EXTENT_DATA) return;
      if (!isOf(item.block, item.slot)) continue;
      const within = fieldOf(FILE, "offset", item.block, payloadAt(item.block, item.slot)[0]);
      if (BigInt.asUintN(64, item.key[2] - within) === offset) add(item.address, item.slot);
    }
  }
  async function shared(parent) {
    const block = await blockAt(parent);
    for (let slot = 0; slot < countOf(block); slot++) if (isOf(block, slot)) add(parent, slot);
  }
  for await (const {key, block, slot} of itemsFrom(extents, [bytenr, types.EXTENT_ITEM, 0n])) {
    if (key[0] !== bytenr) break;
    const [start, size] = payloadAt(block, slot);
    const keyedAt = at => keyed(...["root", "objectid", "offset"].map(
      name => fieldOf("btrfs_extent_data_ref", name, block, at)));
    if (key[1] === types.EXTENT_DATA_REF) await keyedAt(start);
    else if (key[1] === types.SHARED_DATA_REF) await shared(key[2]);
    else if (key[1] === types.EXTENT_ITEM)
      for (let at = start + sizeOf("btrfs_extent_item"); at < start + size;) {
        if (block[at] === types.EXTENT_DATA_REF) {
          await keyedAt(at + 1);
          at += 1 + sizeOf("btrfs_extent_data_ref");
        } else {
          const isShared = block[at] === types.SHARED_DATA_REF;
          if (isShared) await shared(fieldOf(INLINE, "offset", block, at));
          at += sizeOf(INLINE) + (isShared ? sizeOf("btrfs_shared_data_ref") : 0);
        }
      }
  }
  for (const {leaf, slot} of leaves.values()) {
    const key = keyAt(await blockAt(leaf), slot);
    for (const tree of await treesWith(leaf)) rows.push({tree, inode: key[0], offset: key[2], leaf, slot});
  }
  return rows;
}

// ---------------------------------------------------------------------------------- comparison --

// The blocks of a tree: level and, of nodes, how many leaves are below. Nodes alone are read.
async function blocksOf(tree) {
  const all = new Map();
  async function walk(address, level) {
    let leaves = 1;
    if (level) {
      leaves = 0;
      const block = await blockOn(level, address, tree.state);
      for (let slot = 0; slot < countOf(block); slot++)
        leaves += await walk(childAt(block, slot), level - 1);
    }
    all.set(address, {level, leaves});
    return leaves;
  }
  await walk(tree.root, tree.level);
  return all;
}

// Items and whole blocks that are shared, in key order.
async function* units(state, level, address, first, shared) {
  if (shared.has(address)) {
    yield {key: first, shared: address, ...shared.get(address)};
    return;
  }
  const block = await blockOn(level, address, state);
  for (let slot = 0; slot < countOf(block); slot++)
    if (level) yield* units(state, level - 1, childAt(block, slot), keyAt(block, slot), shared);
    else yield {key: keyAt(block, slot), address, slot, block};
}

const payloadOf = ({block, slot}) => {
  const [start, size] = payloadAt(block, slot);
  return block.subarray(start, start + size);
};
function sameBytes(one, other) {
  return one.length === other.length && one.every((byte, at) => byte === other[at]);
}

// Whether a block of a tree is the same block in another: of one disk, and in neither state lost.
const isShared = (address, left, right, theirs) => theirs.has(address) && left.state.disk === right.state.disk &&
  left.state.places.has(address) && right.state.places.has(address);

// Compare two trees: {left, right, change} of items that differ, runs of shared blocks, and how many
// items between them are the same though their leaves are not.
async function* compareTrees(left, right, blocks) {
  const [ours, theirs] = blocks;
  const shared = new Map([...ours].filter(([address]) => isShared(address, left, right, theirs)));
  const sides = [left, right].map(tree => units(tree.state, tree.level, tree.root, [0n, 0, 0n], shared));
  let [one, other] = await Promise.all(sides.map(side => side.next()));
  let same = 0;
  for (;;) {
    if (one.done && other.done) break;
    const order = one.done ? 1 : other.done ? -1 : compareKeys(one.value.key, other.value.key);
    const isWhole = order === 0 && one.value.shared !== undefined;
    if (order === 0 && !isWhole && sameBytes(payloadOf(one.value), payloadOf(other.value))) same++;
    else {
      if (same) yield {same};
      same = 0;
      if (isWhole) yield {shared: one.value};
      else yield {left: order <= 0 ? one.value : null, right: order >= 0 ? other.value : null,
                  change: order < 0 ? "deleted" : order > 0 ? "new" : "changed"};
    }
    if (order <= 0) one = await sides[0].next();
    if (order >= 0) other = await sides[1].next();
  }
  if (same) yield {same};
}
