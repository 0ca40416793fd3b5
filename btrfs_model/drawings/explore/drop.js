// SPDX-License-Identifier: GPL-2.0-only
// An image that is dropped on the page, or chosen, is read here as Python reads one: superblock, chunks,
// trees. No byte of it is trusted. It is shown when all of it was read; an error leaves the page as it was.

const MOST_BYTES = 256 * 2 ** 20, MOST_LEVELS = 8n, STRIPED = {8: "RAID0", 64: "RAID10", 128: "RAID5", 256: "RAID6"};
const SUPER = "btrfs_super_block", CHUNK = "btrfs_chunk", STRIPE = "btrfs_stripe", BACKUP = "btrfs_root_backup";
const ROOT_ITEM = "btrfs_root_item", ROOT_REF = "btrfs_root_ref", DROPPED = "dropped";

function crc32c(bytes) {
  let crc = 0xffffffff;
  for (const byte of bytes) crc = CRC[(crc ^ byte) & 255] ^ crc >>> 8;
  return ~crc >>> 0;
}
const superField = field => form.structs[SUPER].fields[field];
const isPowerOf2 = number => number > 0n && (number & number - 1n) === 0n;

async function bytesOfFile(file, start, size, what) {
  const end = start + size;
  if (end > file.size) throw Error(`${what} would end at byte ${grouped(end)}: the file has ${grouped(file.size)} bytes`);
  return new Uint8Array(await file.slice(start, end).arrayBuffer());
}

// ------------------------------------------------------------------------------ the superblock --

// What tells whether a copy is one: magic, address, kind of checksum, checksum.
function checkCopy(sb, offset) {
  const of = name => fieldOf(SUPER, name, sb, 0), place = name => grouped(offset + superField(name)[0]);
  const magic = String.fromCharCode(...sb.subarray(superField("magic")[0], superField("magic")[0] + 8));
  if (magic !== "_BHRfS_M") throw Error(`there is no btrfs in it: byte ${place("magic")} has no “_BHRfS_M”`);
  if (of("bytenr") !== BigInt(offset)) throw Error(`its superblock at byte ${grouped(offset)} says that it is at ${grouped(of("bytenr"))}`);
  const kind = of("csum_type");
  if (kind !== 0n) throw Error(`its checksums are ${form.csum_types[kind] || `of type ${kind}`}: this page computes crc32c alone`);
  if (load(sb, superField("csum")[0], 4) !== BigInt(crc32c(sb.subarray(superField("csum")[1]))))
    throw Error(`the checksum of its superblock at byte ${grouped(offset)} is wrong`);
}
const unknownBits = (flags, known, names) => Array.from({length: 64}, (_, bit) => 1n << BigInt(bit))
  .filter(bit => flags & ~BigInt(known) & bit).map(bit => names[bit] || `bit ${bit.toString(2).length - 1}`).join(", ");
// The rules of `btrfs_validate_super()` that reading needs.
function checkSuper(sb, offset) {
  const of = name => fieldOf(SUPER, name, sb, 0), sectorsize = of("sectorsize"), nodesize = of("nodesize");
  const features = unknownBits(of("incompat_flags"), form.incompat.known, form.incompat.names);
  if (features) throw Error(`its incompatible features are not supported: ${features}`);
  const flags = unknownBits(of("flags"), form.super_flags.known, form.super_flags.names);
  if (flags) throw Error(`its superblock flags are not supported: ${flags}`);
  const devices = of("num_devices");
  if (devices > 1n) throw Error(`it is one of ${devices} devices of a filesystem: this page reads those of one device`);
  const aligned = name => isPowerOf2(sectorsize) && of(name) % sectorsize === 0n && (of(name) > 0n || name === "log_root");
  const least = BigInt(KEY + sizeOf(CHUNK)), [, most] = superField("sys_chunk_array");
  const sane = {
    sectorsize: isPowerOf2(sectorsize) && sectorsize >= 4096n && sectorsize <= 65536n,
    nodesize: isPowerOf2(nodesize) && nodesize >= sectorsize && nodesize <= 65536n,
    unused_leafsize: of("unused_leafsize") === nodesize,
    ...Object.fromEntries(["root_level", "chunk_root_level", "log_root_level"].map(name => [name, of(name) < MOST_LEVELS])),
    num_devices: devices === 1n,
    sys_chunk_array_size: of("sys_chunk_array_size") >= least && of("sys_chunk_array_size") <= BigInt(most),
    ...Object.fromEntries(["root", "chunk_root", "log_root"].map(name => [name, aligned(name)])),
  };
  for (const [name, good] of Object.entries(sane))
    if (!good) throw Error(`${name} of its superblock, at byte ${grouped(offset + superField(name)[0])}, cannot be ${of(name)}`);
}
// The newest good copy, the first of equals.
async function superOfFile(file) {
  const size = sizeOf(SUPER), good = [];
  let wrong = null;
  for (const offset of form.super_offsets) {
    if (offset + size > file.size && good.length + Boolean(wrong)) break;
    const sb = await bytesOfFile(file, offset, size, "its superblock");
    try { checkCopy(sb, offset); }
    catch (error) { wrong ||= error; continue; }
    good.push({sb, offset, generation: fieldOf(SUPER, "generation", sb, 0)});
  }
  if (!good.length) throw wrong;
  const {sb, offset} = good.reduce((best, one) => one.generation > best.generation ? one : best);
  checkSuper(sb, offset);
  return sb;
}

// ----------------------------------------------------------------------------------- chunks --

function chunkFrom(bytes, at, end, start, where) {
  if (at + sizeOf(CHUNK) > end) throw Error(`${where} is cut short`);
  const of = name => fieldOf(CHUNK, name, bytes, at), count = Number(of("num_stripes")), [first] = form.structs[CHUNK].fields.stripe;
  const length = of("length"), type = of("type"), size = first + count * sizeOf(STRIPE);
  if (!count || at + size > end) throw Error(`${where} has ${count} stripes, for which it has no room`);
  if (start % 4096n || !length || length % 4096n || start + length >= U64)
    throw Error(`${where} cannot have ${grouped(length)} bytes from ${grouped(start)} on`);
  const stripes = Array.from({length: count}, (_, number) => {
    const place = at + first + number * sizeOf(STRIPE);
    return [Number(fieldOf(STRIPE, "devid", bytes, place)), fieldOf(STRIPE, "offset", bytes, place)];
  });
  return {start, length, stripes, size, striped: STRIPED[type & 0x1c8n]};
}
function systemChunks(sb) {
  const [from] = superField("sys_chunk_array"), end = from + Number(fieldOf(SUPER, "sys_chunk_array_size", sb, 0)), chunks = [];
  for (let at = from; at < end;) {
    const where = `chunk ${chunks.length} of its superblock`, key = keyIn(sb, at);
    if (at + KEY > end || key[1] !== types.CHUNK_ITEM) throw Error(`${where} is no CHUNK_ITEM`);
    const chunk = chunkFrom(sb, at + KEY, end, key[2], where);
    chunks.push(chunk);
    at += KEY + chunk.size;
  }
  return chunks;
}
function inOrder(chunks) {
  const sorted = [...chunks].sort((one, other) => one.start < other.start ? -1 : 1);
  sorted.forEach((chunk, number) => {
    const before = sorted[number - 1];
    if (before && before.start + before.length > chunk.start)
      throw Error(`its chunks at ${grouped(before.start)} and ${grouped(chunk.start)} lie over each other`);
  });
  return sorted;
}

// ------------------------------------------------------------------------------- tree blocks --

// What is wrong with a tree block, whoever points at it; null for nothing.
function faultOf(block, address, disk) {
  const head = name => fieldOf("btrfs_header", name, block, 0), level = levelOf(block), count = countOf(block);
  if (load(block, 0, 4) !== BigInt(crc32c(block.subarray(HEADER.fields.csum[1])))) return "its checksum is wrong";
  if (head("bytenr") !== address) return `it says that it is at ${grouped(head("bytenr"))}`;
  const [place, size] = HEADER.fields.fsid;
  if (!sameBytes(block.subarray(place, place + size), disk.fsid)) return "it is of another filesystem";
  if (level >= MOST_LEVELS) return `it cannot be of level ${level}`;
  const room = Math.floor((block.length - HEAD) / (level ? POINTER : ITEM));
  if (count > room || (level && !count)) return `it says that it has ${grouped(count)} items, and has room for ${room}`;
  let end = block.length - HEAD;
  for (let slot = 0; slot < count; slot++) {
    if (slot && compareKeys(keyAt(block, slot - 1), keyAt(block, slot)) >= 0) return `the key of slot ${slot} is not behind that before it`;
    if (level) {
      const child = childAt(block, slot);
      if (!child || child % BigInt(disk.sectorsize)) return `slot ${slot} points at ${grouped(child)}, where no block can be`;
    } else {
      const [start, length] = payloadAt(block, slot), offset = start - HEAD;
      if (offset + length !== end || offset < (slot + 1) * ITEM) return `the bytes of slot ${slot} are not where they can be`;
      end = offset;
    }
  }
  return null;
}

class ImageReader {
  constructor(file, disk) {
    Object.assign(this, {file, disk, chunks: [], blocks: disk.blocks});
  }
  // The bytes of the file that a tree block may lie at.
  places(address) {
    const chunk = this.chunks.find(({start, length}) => address >= start && address < start + length);
    if (!chunk) throw Error("no chunk has its address");
    if (chunk.striped) throw Error(`it lies in the chunk at ${grouped(chunk.start)}, which is ${chunk.striped}: this page does not read it`);
    const here = chunk.stripes.filter(([device]) => device === this.disk.device);
    if (!here.length) throw Error("it lies on another device");
    if (address + BigInt(this.disk.nodesize) > chunk.start + chunk.length) throw Error("its chunk ends before it does");
    return here.map(([, at]) => Number(at + address - chunk.start));
  }
  // A block, from the first copy that is good, as who points at it wants it.
  async block(address, level, generation, tree) {
    const fail = (why, place) => Error(`${this.disk.name}: block ${address} of tree ${tree}${place === undefined ? "" : ` at byte ${grouped(place)}`}: ${why}`);
    let block = this.blocks.get(address), wrong = null, found;
    try {
      if (!block && address % BigInt(this.disk.sectorsize)) throw Error("no block can be there");
      found = block ? [] : this.places(address);
    } catch (error) { throw fail(error.message); }
    for (const place of found) {
      let why;
      try {
        const bytes = owned(this.disk, await bytesOfFile(this.file, place, this.disk.nodesize, "it"));
        why = faultOf(bytes, address, this.disk);
        if (!why) { block = bytes; break; }
      } catch (error) { why = error.message; }
      wrong ||= fail(why, place);
    }
    if (!block) throw wrong;
    if (levelOf(block) !== level) throw fail(`it is of level ${levelOf(block)}, and not ${level}`);
    const written = fieldOf("btrfs_header", "generation", block, 0);
    if (generation && written !== generation) throw fail(`it is of generation ${written}, and not ${generation}`);
    this.blocks.set(address, block);
    return block;
  }
  // All blocks of a tree, level by level: what cannot be read is among the faults of the state.
  async walk(state, {root, level: top, generation, number: id}) {
    let below = [[root, generation]];
    for (let level = top; level >= 0; level--) {
      const here = below;
      below = [];
      for (const [address, wanted] of here) {
        if (state.places.has(address) || state.faults[address]) continue;
        let block;
        try { block = await this.block(address, level, wanted, id); }
        catch (error) { state.faults[address] = error.message; continue; }
        state.places.set(address, level);
        for (let slot = 0; level && slot < countOf(block); slot++)
          below.push([childAt(block, slot), load(block, entryAt(block, slot) + CHILD.fields.generation[0], 8)]);
      }
    }
  }
}

// ------------------------------------------------------------------------------------- trees --

const isSubvolume = id => id === BigInt(form.objects.FS_TREE) || (id >= 256n && id < 1n << 48n);
const plainName = id => isSubvolume(id) && `${id}` !== form.objects.FS_TREE ? `subvolume ${id}` :
  objectText(id).toLowerCase().replaceAll("_", " ");

function treeFrom(state, [objectid, , offset], place) {
  const {TREE_LOG, TREE_RELOC} = form.objects, isLog = `${objectid}` === TREE_LOG, isOf = (isLog || `${objectid}` === TREE_RELOC) && offset > 0n;
  const word = isLog ? "log" : "reloc";
  return {
    ...place, state, number: objectid, id: isOf ? `${word}${offset}` : `${objectid}`,
    name: isOf ? `${word} of ${plainName(offset)}` : isLog ? "tree of log roots" : plainName(objectid),
    files: isSubvolume(isOf ? offset : objectid),
  };
}
// The trees that a tree of roots has root items of.
async function* rootedIn(state, holder) {
  const {fields} = form.structs[ROOT_ITEM], least = fields.level[0] + 1;
  for await (const {key, block, slot} of itemsFrom(holder, [0n, 0, 0n])) {
    if (key[1] !== types.ROOT_ITEM) continue;
    const [at, size] = payloadAt(block, slot), of = name => fieldOf(ROOT_ITEM, name, block, at);
    if (size < least) throw Error(`${state.disk.name}: ${keyText(key)} has ${size} bytes, and not the ${least} that it needs`);
    yield {...treeFrom(state, key, {root: of("bytenr"), level: Number(of("level")), generation: of("generation")}), refs: of("refs")};
  }
}
// Where a subvolume has its name; throws where that cannot be told.
async function pathTo(state, tree, depth = 0) {
  if (tree.id === form.objects.FS_TREE) return "";
  const [roots] = state.trees, item = await (await itemsOf(roots, tree.number, types.ROOT_BACKREF).next()).value;
  const parent = item && tree.refs && depth < 64 ? treeIn(state, item.key[2]) : null;
  if (!parent) throw Error("it has no name");
  const [at] = payloadAt(item.block, item.slot), of = name => fieldOf(ROOT_REF, name, item.block, at), start = at + sizeOf(ROOT_REF);
  const parts = [printable(item.block.subarray(start, start + Number(of("name_len"))))];
  for (let folder = of("dirid"), steps = 0; folder !== TOP; steps++) {
    const [one] = steps < 256 ? await namesOf(parent, folder) : [];
    if (!one) throw Error("a folder has no name");
    parts.unshift(one.name);
    folder = one.folder;
  }
  const above = await pathTo(state, parent, depth + 1);
  return [...above ? [above] : [], ...parts].join("/");
}

// A state with all that hangs on a root of roots.
async function readState(reader, name, place) {
  const {disk} = reader, {objects} = form;
  const state = {disk, name, title: `${disk.key}: ${disk.name}, generation ${place.generation}`, places: new Map(), faults: {}, trees: []};
  const top = (id, root, level, generation) => treeFrom(state, [BigInt(id), types.ROOT_ITEM, 0n], {root, level, generation});
  state.trees.push(top(objects.ROOT_TREE, place.root, place.root_level, place.generation),
                   top(objects.CHUNK_TREE, place.chunk_root, place.chunk_root_level, place.chunk_root_generation));
  if (place.log_root) state.trees.push(top(objects.TREE_LOG, place.log_root, place.log_root_level, place.generation + 1n));
  for (const tree of state.trees) await reader.walk(state, tree);
  try {
    for (const holder of state.trees.filter((_, number) => number !== 1))
      for await (const tree of rootedIn(state, holder)) {
        if (tree.level >= MOST_LEVELS) throw Error(`${disk.name}: ${tree.name} cannot have ${tree.level} levels`);
        state.trees.push(tree);
      }
  } catch (error) { if (!Object.values(state.faults).includes(error.message)) state.faults[0] = error.message; }
  for (const tree of state.trees) await reader.walk(state, tree);
  const isNode = ([, level]) => level > 0;
  state.places = new Map([...[...state.places].filter(isNode), ...[...state.places].filter(one => !isNode(one))]);
  for (const tree of state.trees)
    if (isSubvolume(tree.number)) tree.name += ` “${await pathTo(state, tree).catch(() => "?") || "/"}”`;
  return state;
}

async function readImage(file) {
  if (file.size > MOST_BYTES) throw Error(`it has ${grouped(file.size)} bytes, and this page reads ${grouped(MOST_BYTES)} at most`);
  const sb = await superOfFile(file), of = (name, at = 0) => fieldOf(SUPER, name, sb, at);
  const hasUuid = of("incompat_flags") & BigInt(form.incompat.metadata_uuid);
  const [uuid, size] = superField(hasUuid ? "metadata_uuid" : "fsid"), [device] = superField("dev_item");
  const disk = {
    key: DROPPED, prefix: `${DROPPED}-`, name: printable(new TextEncoder().encode(file.name)), nodesize: Number(of("nodesize")),
    sectorsize: Number(of("sectorsize")), csum_size: 4, super: Number(of("bytenr")), superBytes: sb,
    fsid: sb.subarray(uuid, uuid + size), device: Number(load(sb, device, 8)), blocks: new Map(),
  };
  owned(disk, sb);
  const reader = new ImageReader(file, disk), places = [Object.fromEntries(
    ["generation", "root", "root_level", "chunk_root", "chunk_root_level", "chunk_root_generation", "log_root", "log_root_level"]
      .map(name => [name, name.endsWith("level") ? Number(of(name)) : of(name)]))];
  reader.chunks = inOrder(systemChunks(sb));
  await readChunks(reader, places[0]);
  disk.chunks = reader.chunks.filter(one => !one.striped).map(({start, length, stripes}) =>
    [`${start}`, `${length}`, stripes.map(([one, at]) => [one, `${at}`])]);
  const [first] = superField("super_roots"), older = new Map();
  for (let number = 0; number < 4; number++) {
    const backup = name => fieldOf(BACKUP, name, sb, first + number * sizeOf(BACKUP)), generation = backup("tree_root_gen");
    if (backup("tree_root") && generation < places[0].generation)
      older.set(generation, {generation, root: backup("tree_root"), root_level: Number(backup("tree_root_level")), chunk_root: backup("chunk_root"),
        chunk_root_level: Number(backup("chunk_root_level")), chunk_root_generation: backup("chunk_root_gen")});
  }
  places.push(...[...older.values()].sort((one, other) => one.generation > other.generation ? -1 : 1));
  disk.roots = places.map(({generation, root}) => ({generation, bytenr: `${root}`}));
  disk.states = [];
  for (const [number, place] of places.entries())
    disk.states.push(await readState(reader, DROPPED + (number ? `@${place.generation}` : ""), place));
  return disk;
}
// All chunks, from the chunk tree: without it nothing can be found.
async function readChunks(reader, {chunk_root: root, chunk_root_level: level, chunk_root_generation: generation}) {
  const state = {disk: reader.disk, places: new Map(), faults: {}}, number = BigInt(form.objects.CHUNK_TREE);
  await reader.walk(state, {root, level, generation, number});
  const [lost] = Object.values(state.faults);
  if (lost) throw Error(`its chunk tree cannot be read: ${lost}`);
  const chunks = [];
  for await (const {key, block, slot} of itemsFrom({root, level, state}, [0n, 0, 0n])) {
    const [at, size] = payloadAt(block, slot);
    if (key[1] === types.CHUNK_ITEM) chunks.push(chunkFrom(block, at, at + size, key[2], `its chunk at ${grouped(key[2])}`));
  }
  reader.chunks = inOrder(chunks);
}

// ------------------------------------------------------------------------------ in the page --

async function takeImage(file) {
  document.body.setAttribute("aria-busy", "true");
  say(`Reading ${file.name} …`);
  try {
    const disk = await readImage(file);
    for (const name of [...states.keys()]) if (name.startsWith(DROPPED)) states.delete(name);
    for (const state of disk.states) states.set(state.name, state);
    listStates();
    lookAt(disk.states[0]);
    go("super");
  } catch (error) {
    say(`${file.name} is not read: ${error.message}.`);
    document.body.removeAttribute("aria-busy");
  }
}
byId("image").addEventListener("change", () => {
  const [file] = byId("image").files;
  byId("image").value = ""; // so that the same file can be chosen again
  if (file) takeImage(file);
});
addEventListener("dragover", event => event.preventDefault());
addEventListener("drop", event => {
  event.preventDefault();
  const [file] = event.dataTransfer.files;
  if (file) takeImage(file);
});
