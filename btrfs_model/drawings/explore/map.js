// SPDX-License-Identifier: GPL-2.0-only
// A map of the device: what lies where in each chunk, by whose it is, the newer the fuller.

const CELLS_OF_CHUNK = 768, ACROSS = 64;
const SVG = "http://www.w3.org/2000/svg";
const KINDS_OF_TREES = [
  ["files", tree => tree.files],
  ["extents", tree => tree.id === `${EXTENT_TREE}`],
  ["checksums", tree => tree.id === `${form.objects.CSUM_TREE}`],
  ["free space", tree => tree.id === `${form.objects.FREE_SPACE_TREE}`],
  ["logs, relocation", tree => /^(log|reloc)/.test(tree.id) || tree.id === `${form.objects.TREE_LOG}`],
  ["other trees", () => true],
];
const KIND_NAMES = [...KINDS_OF_TREES.map(([name]) => name), "file data"];
const CHUNK_TYPES = [[1n, "data"], [2n, "system"], [4n, "metadata"]];

function drawn(tag, attributes, ...children) {
  const one = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes)) one.setAttribute(name, value);
  one.append(...children);
  return one;
}

// What lies on the device: start, size, kind, generation, and whether it is a tree block. Trees that
// cannot be read whole are named in `faults`.
async function occupants(faults) {
  const all = [], kinds = new Map();
  for (const tree of shown.trees)
    try {
      for (const address of (await blocksOf(tree)).keys())
        if (!kinds.has(address)) kinds.set(address, KINDS_OF_TREES.findIndex(([, isIt]) => isIt(tree)));
    } catch (error) { faults.push(`${tree.name} is not in it: ${error.message}`); }
  for (const [address, kind] of kinds) {
    if (!shown.places.has(address)) { faults.push(shown.faults[address]); continue; }
    const block = await blockAt(address), generation = fieldOf("btrfs_header", "generation", block, 0);
    all.push({start: address, size: BigInt(block.length), kind, generation, isBlock: true});
  }
  const extents = treeOf(EXTENT_TREE);
  if (!extents) return all;
  try {
    for await (const {key, block, slot} of itemsFrom(extents, [0n, 0, 0n])) {
      if (key[1] !== types.EXTENT_ITEM || shown.places.has(key[0])) continue;
      const generation = fieldOf("btrfs_extent_item", "generation", block, payloadAt(block, slot)[0]);
      all.push({start: key[0], size: key[2], kind: KIND_NAMES.length - 1, generation, isBlock: false});
    }
  } catch (error) { faults.push(`File data are not all in it: ${error.message}`); }
  return all;
}

async function chunksOfMap() {
  const rows = [];
  for await (const {key, block, slot} of itemsFrom(treeOf(form.objects.CHUNK_TREE), [0n, 0, 0n])) {
    if (key[1] !== types.CHUNK_ITEM) continue;
    const [at] = payloadAt(block, slot);
    rows.push({start: key[2], size: fieldOf("btrfs_chunk", "length", block, at),
               type: fieldOf("btrfs_chunk", "type", block, at)});
  }
  return rows;
}

// The squares of a chunk up to `end`: of each what takes the most of it, and the newest of that.
function squaresOf(chunk, inside, end) {
  let size = BigInt(shown.disk.nodesize);
  while ((end - chunk.start) / size > CELLS_OF_CHUNK) size *= 2n;
  const cells = new Map();
  for (const one of inside) {
    const last = one.start + one.size;
    for (let at = (one.start - chunk.start) / size; chunk.start + at * size < last; at++) {
      const from = chunk.start + at * size, to = from + size;
      const bytes = Number((last < to ? last : to) - (one.start > from ? one.start : from));
      const kinds = cells.get(at) || new Map(), before = kinds.get(one.kind);
      if (!before) kinds.set(one.kind, {...one, bytes});
      else {
        before.bytes += bytes;
        if (one.generation > before.generation) Object.assign(before, one);
      }
      cells.set(at, kinds);
    }
  }
  return {size, cells: [...cells].map(([at, kinds]) =>
    [Number(at), [...kinds.values()].reduce((most, one) => one.bytes > most.bytes ? one : most)])};
}

function drawChunk(chunk, inside, newness, focus) {
  if (!inside.length) return [];
  const end = inside.reduce((last, one) => one.start + one.size > last ? one.start + one.size : last, 0n);
  const {size, cells} = squaresOf(chunk, inside, end), count = Number((end - chunk.start + size - 1n) / size);
  const rest = chunk.start + chunk.size - end;
  const rows = Math.ceil(count / ACROSS), title = `What lies in the chunk at ${grouped(chunk.start)}`;
  const ground = Array.from({length: rows}, (_, row) => drawn("rect",
    {x: 0, y: row * 10, width: Math.min(ACROSS, count - row * ACROSS) * 10 - 1, height: 9, class: "free"}));
  const squares = cells.map(([at, one]) => {
    const what = `${KIND_NAMES[one.kind]}, ${grouped(one.start)}, generation ${one.generation}`;
    return drawn("rect", {x: at % ACROSS * 10, y: Math.floor(at / ACROSS) * 10, width: 9, height: 9,
      class: `kind${one.kind}${one.start <= focus && focus < one.start + one.size ? " here" : ""}`, "fill-opacity": newness(one.generation).toFixed(2),
      "data-route": `${one.isBlock ? "block" : "address"}/${one.start}`}, drawn("title", {}, what));
  });
  const picture = drawn("svg", {viewBox: `0 0 ${ACROSS * 10} ${rows * 10}`, class: "map", role: "img"},
    drawn("title", {}, title), drawn("desc", {}, "The table below has the same as numbers."), ...ground, ...squares);
  picture.addEventListener("click", event => {
    const {route} = event.target.closest("rect")?.dataset || {};
    if (route) go(route);
  });
  return [picture, make("p", {className: "muted",
    textContent: `A square is ${grouped(size)} bytes; a click on one leads there. Behind them ${grouped(rest)} bytes are free.`})];
}

function kindTable(inside) {
  const rows = KIND_NAMES.flatMap((name, kind) => {
    const some = inside.filter(one => one.kind === kind);
    if (!some.length) return [];
    const newest = some.reduce((most, one) => one.generation > most.generation ? one : most);
    const oldest = some.reduce((least, one) => one.generation < least.generation ? one : least);
    const swatch = make("span", {className: `swatch kind${kind}`, attributes: {"aria-hidden": "true"}});
    const bytes = some.reduce((sum, one) => sum + one.size, 0n);
    const to = one => link(`${one.isBlock ? "block" : "address"}/${one.start}`, `${one.generation}`);
    return [[[swatch, ` ${name}`], grouped(some.length), grouped(bytes), [to(oldest)], [to(newest)]]];
  });
  if (!rows.length) return make("p", {textContent: "Nothing lies there."});
  return table("What lies there", ["whose", "blocks or extents", "bytes", "oldest generation", "newest"], rows);
}

// `asked`: an address; its square is marked and its chunk in sight.
async function showMap(asked) {
  const faults = [], chunks = await chunksOfMap(), all = await occupants(faults);
  const generations = [...new Set(all.map(one => one.generation))].sort((one, other) => one < other ? -1 : 1);
  const rank = new Map(generations.map((one, number) => [one, number]));
  const newness = one => generations.length < 2 ? 1 : 0.3 + 0.7 * rank.get(one) / (generations.length - 1);
  const focus = asked === undefined ? -1n : number(asked), holds = one => one.start <= focus && focus < one.start + one.size;
  if (asked !== undefined && !chunks.some(holds)) throw Error(`no chunk has the address ${asked}`);
  const parts = chunks.flatMap(chunk => {
    const inside = all.filter(one => one.start >= chunk.start && one.start < chunk.start + chunk.size);
    const what = CHUNK_TYPES.filter(([bit]) => chunk.type & bit).map(([, name]) => name).join(" and ");
    const used = inside.reduce((sum, one) => sum + one.size, 0n);
    const heading = make("h3", {}, link(`map/${chunk.start}`, `Chunk of ${what} at ${grouped(chunk.start)}`));
    if (holds(chunk)) heading.setAttribute("aria-current", "true");
    return [heading,
      make("p", {textContent: `${grouped(used)} of ${grouped(chunk.size)} bytes are taken. ${whereText(chunk.start)}`}),
      ...drawChunk(chunk, inside, newness, focus), kindTable(inside)];
  });
  show("Map of the device", make("p", {textContent:
    "Chunks by their logical address. A colour says whose a square is, and the fuller it is, the newer is what lies there."}),
    ...faults.map(text => make("p", {className: "fault", textContent: text})), ...parts);
}
