// SPDX-License-Identifier: GPL-2.0-only
// Tree blocks, unpacked as they are asked for; pack.py says how they are packed.

const about = JSON.parse(document.getElementById("about").textContent);
const {form} = about;
const {btrfs_header: HEADER, btrfs_item: ENTRY, btrfs_key_ptr: CHILD} = about.form.structs;
const HEAD = HEADER.size, ITEM = ENTRY.size, POINTER = CHILD.size;
const [COUNT, LEVEL, BYTENR] = ["nritems", "level", "bytenr"].map(name => HEADER.fields[name][0]);
const KEY = ENTRY.fields.key[1], PLACE = ENTRY.fields.offset[0], SIZE = ENTRY.fields.size[0];
const KEPT = 48; // packs
const packs = new Map(); // those that were used last, by id
const owners = new WeakMap(); // of the memory of blocks: the disk that they are of
function owned(disk, bytes) {
  owners.set(bytes.buffer, disk);
  return bytes;
}
const diskOf = bytes => owners.get(bytes.buffer);

async function inflate(id) {
  const text = document.getElementById(id).textContent;
  const data = Uint8Array.from(atob(text), one => one.charCodeAt(0));
  const stream = new Blob([data]).stream().pipeThrough(new DecompressionStream("deflate-raw"));
  return new Uint8Array(await new Response(stream).arrayBuffer());
}

const viewOf = data => new DataView(data.buffer, data.byteOffset, data.byteLength);

// CRC-32C without inversions, as keys of names have it
const CRC = Uint32Array.from({length: 256}, (_, byte) => {
  for (let bit = 0; bit < 8; bit++) byte = byte & 1 ? byte >>> 1 ^ 0x82f63b78 : byte >>> 1;
  return byte;
});
function nameHash(bytes) {
  let crc = 0xfffffffe;
  for (const byte of bytes) crc = CRC[(crc ^ byte) & 255] ^ crc >>> 8;
  return crc >>> 0;
}

function readPack(disk, packed) {
  const size = disk.nodesize, count = viewOf(packed).getUint32(0, true), isText = packed[4];
  const data = new Uint8Array(count * size), view = viewOf(data);
  let from = 5 + count;
  // rows of bytes, which stand in columns
  function put(rows, width, differences = true) {
    for (let column = 0; column < width; column++) {
      let last = 0;
      for (const row of rows) {
        last = differences ? last + packed[from++] & 255 : packed[from++];
        data[row + column] = last;
      }
    }
  }
  const starts = Array.from({length: count}, (_, number) => number * size);
  put(starts, HEAD);
  const pointers = [], items = [], ends = [];
  starts.forEach((start, number) => {
    const entries = Math.min(view.getUint32(start + COUNT, true), size);
    const isNode = data[start + LEVEL] > 0;
    if (packed[5 + number]) return;
    for (let slot = 0; slot < entries; slot++)
      if (isNode) pointers.push(start + HEAD + slot * POINTER);
      else { items.push(start + HEAD + slot * ITEM); ends.push(slot ? 0 : start + size); }
  });
  put(pointers, POINTER);
  put(items, KEY);
  put(items.map(item => item + SIZE), 4, false);
  const inOrder = (one, other) => one[0] - other[0];
  const places = new Int32Array(items.length), lengths = new Int32Array(items.length);
  const groups = new Map(), heads = new Map(), named = [];
  const add = (map, key, place) => {
    const rows = map.get(key);
    if (rows) rows.push(place);
    else map.set(key, [place]);
  };
  items.forEach((at, number) => {
    const kind = data[at + 8], length = lengths[number] = view.getUint32(at + SIZE, true);
    const place = places[number] = (ends[number] || places[number - 1]) - length;
    view.setUint32(at + PLACE, place - (at - at % size) - HEAD, true);
    const isNamed = kind in about.named && length >= about.named[kind][0];
    if (isNamed) named.push(number);
    if (isNamed && isText) add(heads, kind, place);
    else add(groups, kind * 2 ** 32 + length, place);
  });
  for (const [group, rows] of [...groups].sort(inOrder)) put(rows, group % 2 ** 32);
  for (const [kind, rows] of [...heads].sort(inOrder)) put(rows, about.named[kind][0]);
  for (const number of named) {
    const at = items[number], place = places[number], length = lengths[number];
    const [head, nameLength, dataLength, isHashed] = about.named[data[at + 8]];
    if (isText) {
      data.set(packed.subarray(from, from + length - head), place + head);
      from += length - head;
    }
    let room = length - head;
    if (dataLength >= 0) room -= view.getUint16(place + dataLength, true);
    const size = view.getUint16(place + nameLength, true) + room & 65535;
    view.setUint16(place + nameLength, size, true);
    if (isHashed) {
      const hash = nameHash(data.subarray(place + head, place + Math.min(length, head + size)));
      view.setUint32(at + 9, view.getUint32(at + 9, true) ^ hash, true);
    }
  }
  starts.forEach((start, number) => {
    if (!packed[5 + number]) return;
    data.set(packed.subarray(from, from + size - HEAD), start + HEAD);
    from += size - HEAD;
  });
  owned(disk, data);
  return new Map(starts.map(start => [view.getBigUint64(start + BYTENR, true),
                                      data.subarray(start, start + size)]));
}

// Blocks are in the states that their byte of the index has a bit of.
async function readIndex(disk) {
  const packed = await inflate(`${disk.prefix}index`), width = 9, count = packed.length / width;
  const rows = new Uint8Array(packed.length), view = viewOf(rows);
  for (let column = 0, from = 0; column < width; column++)
    for (let row = 0, last = 0; row < count; row++)
      rows[row * width + column] = last = last + packed[from++] & 255;
  let row = 0;
  disk.counts.forEach((count, pack) => {
    for (const end = row + count; row < end; row++)
      disk.states.forEach((state, number) => {
        if (rows[row * width + 8] >> number & 1) state.places.set(view.getBigUint64(row * width, true), pack);
      });
  });
}

// The bytes of a tree block.
async function blockAt(address, {disk, places, faults} = shown) {
  const pack = places.get(address);
  if (pack === undefined) throw Error(faults[address] || `no tree has a block at ${address}`);
  if (disk.blocks) return disk.blocks.get(address); // of a file that was dropped
  const id = `${disk.prefix}pack${pack}`, kept = packs.get(id) || inflate(id).then(one => readPack(disk, one));
  packs.delete(id);
  packs.set(id, kept);
  if (packs.size > KEPT) packs.delete(packs.keys().next().value);
  return (await kept).get(address);
}

// A block on a level: a damaged tree may point at one that is elsewhere in it, even around in a loop.
async function blockOn(level, address, state = shown) {
  const block = await blockAt(address, state);
  if (levelOf(block) !== level) throw Error(`block ${address} is of level ${levelOf(block)}, and not ${level}`);
  return block;
}

const levelOf = block => block[LEVEL];
const countOf = block => viewOf(block).getUint32(COUNT, true);
const addressOf = block => viewOf(block).getBigUint64(BYTENR, true);
const entryAt = (block, slot) => HEAD + slot * (levelOf(block) ? POINTER : ITEM);

function keyAt(block, slot) {
  const view = viewOf(block), at = entryAt(block, slot);
  return [view.getBigUint64(at, true), block[at + 8], view.getBigUint64(at + 9, true)];
}
const childAt = (block, slot) => viewOf(block).getBigUint64(entryAt(block, slot) + CHILD.fields.blockptr[0], true);

function payloadAt(block, slot) {
  const view = viewOf(block), at = entryAt(block, slot);
  const start = HEAD + view.getUint32(at + PLACE, true);
  return [start, view.getUint32(at + SIZE, true)];
}

function compareKeys(one, other) {
  for (let part = 0; part < 3; part++)
    if (one[part] !== other[part]) return one[part] < other[part] ? -1 : 1;
  return 0;
}
