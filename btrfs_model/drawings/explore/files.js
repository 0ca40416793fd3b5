// SPDX-License-Identifier: GPL-2.0-only
// Folders and files: what a directory holds, and where the bytes of a file lie.

const DIR = "btrfs_dir_item", INODE = "btrfs_inode_item", REF = "btrfs_inode_ref";
const ENTRY_TYPES = ["?", "file", "folder", "character device", "block device", "pipe", "socket", "symbolic link"];
const EXTENT_TYPES = ["inline", "regular", "preallocated"];
const TOP = 256n;

async function inodeItem(tree, inode) {
  const key = [inode, form.types.INODE_ITEM, 0n], item = await found(await search(tree, key));
  return item && !compareKeys(item.key, key) ? item : null;
}
const ofInode = ({block, slot}, name) => fieldOf(INODE, name, block, payloadAt(block, slot)[0]);

async function* itemsOf(tree, inode, type) {
  for await (const item of itemsFrom(tree, [inode, type, 0n])) {
    if (item.key[0] !== inode || item.key[1] !== type) return;
    yield item;
  }
}

// The entries of a directory in the order in which they are listed: name, where it leads, type.
async function* entriesIn(tree, inode) {
  for await (const {block, slot} of itemsOf(tree, inode, form.types.DIR_INDEX)) {
    const [at] = payloadAt(block, slot), start = at + sizeOf(DIR);
    const name = block.subarray(start, start + Number(fieldOf(DIR, "name_len", block, at)));
    yield {name: printable(name), location: keyIn(block, at + form.structs[DIR].fields.location[0]),
           type: Number(fieldOf(DIR, "type", block, at))};
  }
}

// The names of an inode that its INODE_REF items have, each with its directory.
async function namesOf(tree, inode) {
  const names = [];
  for await (const {key, block, slot} of itemsOf(tree, inode, form.types.INODE_REF)) {
    const [start, size] = payloadAt(block, slot);
    for (let at = start; at < start + size;) {
      const length = Number(fieldOf(REF, "name_len", block, at)), begin = at + sizeOf(REF);
      names.push({name: printable(block.subarray(begin, begin + length)), folder: key[2]});
      at = begin + length;
    }
  }
  return names;
}

// Links to the folders above, from the top on.
async function wayDown(tree, inode) {
  const way = [];
  for (let at = inode; at !== TOP && way.length < 64;) {
    const [{name, folder} = {}] = await namesOf(tree, at);
    if (!folder) break;
    way.unshift(" / ", link(`files/${tree.id}/${at}`, name));
    at = folder;
  }
  return [link(`files/${tree.id}`, tree.name), ...way];
}

function folderTable(tree, inode) {
  async function* rows() {
    for await (const {name, location: [number, kind], type} of entriesIn(tree, inode)) {
      const isTree = kind === form.types.ROOT_ITEM, there = isTree ? treeOf(number) : tree;
      if (isTree && !there) { yield [name, "subvolume that is not here", "–", "–"]; continue; }
      const item = isTree ? null : await inodeItem(tree, number);
      const where = isTree ? `files/${number}` : `files/${tree.id}/${number}`;
      yield [[link(where, name)], isTree ? "subvolume" : ENTRY_TYPES[type] || "?", item ? grouped(ofInode(item, "size")) : "–",
             item ? [link(`in/${tree.id}/${item.address}/${item.slot}`, `inode ${number}`)] : "–"];
    }
  }
  return growing("What is in it, as a listing has it", ["name", "what", "bytes", "its item"], rows());
}

async function* extentRows(tree, inode) {
  for await (const {key, address, block, slot} of itemsOf(tree, inode, form.types.EXTENT_DATA)) {
    const [at] = payloadAt(block, slot), of = name => fieldOf(FILE, name, block, at);
    const type = Number(of("type")), packed = Number(of("compression")) ? ", compressed" : "";
    const item = link(`in/${tree.id}/${address}/${slot}`, grouped(key[2]));
    if (!type) { yield [[item], grouped(of("ram_bytes")), `inline${packed}`, "in the leaf itself"]; continue; }
    const bytenr = of("disk_bytenr"), isHole = !bytenr;
    yield [[item], grouped(of("num_bytes")), isHole ? "hole" : `${EXTENT_TYPES[type] || "?"}${packed}`,
           isHole ? "–" : [link(`address/${bytenr}`, grouped(bytenr)), `: ${grouped(of("disk_num_bytes"))} bytes`]];
  }
}

async function showFiles(id, asked = `${TOP}`) {
  const some = shown.trees.filter(tree => tree.files);
  const tree = id === undefined ? some[0] : wantedTree(id), inode = number(asked);
  if (!tree) throw Error("there is no tree with files");
  const item = await inodeItem(tree, inode);
  if (!item) throw Error(`${tree.name} has no inode ${inode}`);
  const select = make("select", {}, ...some.map(one =>
    make("option", {value: one.id, textContent: one.name, selected: one === tree})));
  const choice = make("form", {}, make("label", {}, "Files of ", select), make("button", {textContent: "Show"}));
  choice.addEventListener("submit", event => {
    event.preventDefault();
    go(`files/${select.value}`);
  });
  const isFolder = (Number(ofInode(item, "mode")) & 0o170000) === 0o040000;
  const names = (await namesOf(tree, inode)).map(one => one.name);
  const all = isFolder ? folderTable(tree, inode) :
    growing("Where its bytes lie", ["from byte", "bytes", "what", "logical address"], extentRows(tree, inode));
  show(isFolder ? "Folder" : "File", choice, make("p", {}, ...await wayDown(tree, inode)),
    make("p", {}, `${grouped(ofInode(item, "size"))} bytes, mode ${Number(ofInode(item, "mode")).toString(8)}, written in generation ` +
      `${ofInode(item, "transid")}. `, link(`in/${tree.id}/${item.address}/${item.slot}`, "Its inode item")),
    ...names.length > 1 ? [make("p", {textContent: `Its names: ${names.join(", ")}`})] : [], ...all.children);
  await all.grow();
}
