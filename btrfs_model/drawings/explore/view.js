// SPDX-License-Identifier: GPL-2.0-only
// What is seen: the tree at the left, what was chosen at the right. Names are text, never markup.

const byId = id => document.getElementById(id);
function make(tag, properties = {}, ...children) {
  const {attributes = {}, ...plain} = properties, one = Object.assign(document.createElement(tag), plain);
  for (const [name, value] of Object.entries(attributes)) one.setAttribute(name, value);
  one.append(...children);
  return one;
}
const say = text => { byId("said").textContent = text; };
const grouped = number => `${number}`.replace(/\B(?=(\d{3})+$)/g, ",");
// Leads to somewhere in a state.
function link(route, text, state = shown) {
  const one = make("a", {href: `#${route}${state.name && `?of=${state.name}`}`, textContent: text});
  one.dataset.of = state.name;
  return one;
}
const shortly = bytes => hexOf(bytes.subarray(0, 32)).replace(/..(?=.)/g, "$& ") + (bytes.length > 32 ? " …" : "");

// ------------------------------------------------------------------------------------ the tree --

const nodes = new WeakMap(); // of each treeitem: route, what is below it
const tops = new Map();
let current = null;

function treeItem(label, route, below) {
  const row = make("span", {className: "row", textContent: label});
  const one = make("li", {tabIndex: -1, attributes: {role: "treeitem", "aria-selected": "false"}}, row);
  if (below) one.setAttribute("aria-expanded", "false");
  nodes.set(one, {route, below});
  return one;
}

async function entriesOf(tree, address, level) {
  const block = await blockOn(level, address, tree.state), isNode = level > 0;
  return Array.from({length: countOf(block)}, (_, slot) => {
    if (!isNode) return treeItem(itemLabel(block, slot), `in/${tree.id}/${address}/${slot}`);
    const child = childAt(block, slot), kind = level > 1 ? "node" : "leaf";
    const text = `${kind} ${grouped(child)} from ${keyText(keyAt(block, slot)).slice(4)}`;
    return treeItem(text, `in/${tree.id}/${child}`, () => entriesOf(tree, child, level - 1));
  });
}

async function unfold(one) {
  const node = nodes.get(one);
  if (!node.below || node.list) return node.list?.children;
  one.setAttribute("aria-busy", "true");
  let entries;
  try { entries = await node.below(); }
  catch (error) { entries = [treeItem(error.message, node.route)]; }
  one.removeAttribute("aria-busy");
  if (!node.list) {
    node.list = make("ul", {attributes: {role: "group"}}, ...entries);
    if (entries.length) one.append(node.list);
    one.setAttribute("aria-expanded", "true");
  }
  return node.list.children;
}
function fold(one) {
  const node = nodes.get(one);
  if (!node.list) return;
  unfolded.delete(one);
  if (node.list.contains(current)) choose(one);
  node.list.remove();
  node.list = null;
  one.setAttribute("aria-expanded", "false");
}

function choose(one, focus = false) {
  if (current) {
    current.tabIndex = -1;
    current.setAttribute("aria-selected", "false");
  }
  current = one;
  one.tabIndex = 0;
  one.setAttribute("aria-selected", "true");
  if (focus) one.focus();
  one.firstChild.scrollIntoView({block: "nearest"});
}
// Heights of rows that were not seen yet are guesses: look again when they are known.
function inSight(one) {
  const pane = byId("left"), row = one.firstChild;
  const look = () => {
    const box = row.getBoundingClientRect(), frame = pane.getBoundingClientRect();
    if (box.top < frame.top || box.bottom > frame.bottom)
      pane.scrollTop += box.top - frame.top - frame.height / 3;
  };
  look();
  return new Promise(done => requestAnimationFrame(() => { look(); requestAnimationFrame(() => { look(); done(); }); }));
}

let unfolded = new Set(); // along the way to what is shown
// Unfold a tree along a way of slots, and choose what is at its end. What was unfolded for what was
// shown before is folded again.
async function reveal(tree, way, slot) {
  const opened = new Set();
  let one = tops.get(tree.id);
  for (const step of slot === null ? way : [...way, {slot}]) {
    if (!nodes.get(one).list || unfolded.has(one)) opened.add(one);
    const below = await unfold(one);
    if (!below[step.slot]) break;
    one = below[step.slot];
  }
  // a leaf that was come from stays as it is
  if (unfolded.has(one)) opened.add(one);
  foldBefore(opened);
  choose(one);
  await inSight(one);
}
function foldBefore(opened = new Set()) {
  for (const before of unfolded) if (!opened.has(before)) fold(before);
  unfolded = opened;
}

const visible = () => [...byId("tree").querySelectorAll("[role=treeitem]")];
function move(one, by) {
  const all = visible(), next = all[all.indexOf(one) + by];
  if (next) choose(next, true);
}
const KEYS = {
  ArrowDown: one => move(one, 1),
  ArrowUp: one => move(one, -1),
  ArrowRight: async one => {
    const node = nodes.get(one);
    if (node.list) { if (node.list.firstChild) choose(node.list.firstChild, true); }
    else {
      await unfold(one);
      keepUnfolded();
    }
  },
  ArrowLeft: one => {
    if (nodes.get(one).list) {
      fold(one);
      keepUnfolded();
    } else if (one.parentElement.closest("[role=treeitem]")) choose(one.parentElement.closest("[role=treeitem]"), true);
  },
  Home: () => choose(visible()[0], true),
  End: () => choose(visible().at(-1), true),
  Enter: one => go(nodes.get(one).route, "tree"),
  " ": one => go(nodes.get(one).route, "tree"),
};
byId("tree").addEventListener("keydown", event => {
  const one = event.target.closest("[role=treeitem]");
  if (!one || !KEYS[event.key] || event.ctrlKey || event.altKey || event.metaKey) return;
  event.preventDefault();
  KEYS[event.key](one);
});
byId("tree").addEventListener("click", async event => {
  const one = event.target.closest("[role=treeitem]");
  if (!one) return;
  choose(one, true);
  for (let up = one; up; up = up.parentElement.closest("[role=treeitem]")) unfolded.delete(up);
  if (nodes.get(one).list) fold(one);
  else await unfold(one);
  go(nodes.get(one).route, "tree");
});

// ------------------------------------------------------------------------------- what is shown --

let turn = 0;
// Show a heading and what stands below it.
function show(title, ...children) {
  byId("title").textContent = title;
  byId("shown").replaceChildren(...children);
}
// A part that takes a while; it is dropped when something else is shown meanwhile.
function later(title, work) {
  const part = make("section", {}, make("h3", {textContent: title}), make("p", {textContent: "…"}));
  work().then(children => part.replaceChildren(part.firstChild, ...children),
              error => { part.lastChild.textContent = error.message; });
  return part;
}
function listOf(rows, none) {
  if (!rows.length) return [make("p", {textContent: none})];
  return [make("ul", {}, ...rows.map(row => make("li", {}, ...row)))];
}
// Where there is no room for all columns, a row stands as lines (see the style sheet): roles say that
// it is a table all the same, and each cell has its heading.
const withRole = (tag, role, properties, ...children) =>
  make(tag, {...properties, attributes: {...properties.attributes, role}}, ...children);
function tableRow(headings, [first, ...cells]) {
  return withRole("tr", "row", {}, withRole("th", "rowheader", {scope: "row"}, ...[first].flat()),
    ...cells.map((cell, column) =>
      withRole("td", "cell", {attributes: {"data-label": headings[column + 1]}}, ...[cell].flat())));
}
function table(caption, headings, rows) {
  const head = headings.map(text => withRole("th", "columnheader", {textContent: text, scope: "col"}));
  return withRole("table", "table", {className: headings.length > 3 ? "many" : "few"},
    make("caption", {textContent: caption}),
    withRole("thead", "rowgroup", {}, withRole("tr", "row", {}, ...head)),
    withRole("tbody", "rowgroup", {}, ...rows.map(row => tableRow(headings, row))));
}

// Where something leads; null for nowhere.
function routeOf(kind, value, tree, piece, pieces) {
  if (kind === "address") return value ? `address/${value}` : null;
  if (kind === "tree") return treeOf(value) ? `tree/${value}` : null;
  if (kind === "inode") return `inode/${tree.id}/${value}`;
  if (kind === "inode of root") {
    const root = pieces.find(one => one.field === "btrfs_extent_data_ref.root" && one.at === piece.at - 8);
    return root && treeOf(root.value) ? `inode/${root.value}/${value}` : null;
  }
  const [objectid, type, offset] = value;
  if (type === form.types.ROOT_ITEM) return treeOf(objectid) ? `tree/${objectid}` : null;
  return type === form.types.INODE_ITEM ? `inode/${tree.id}/${objectid}` :
    `key/${tree.id}/${objectid}.${type}.${offset}`;
}

// Where on which devices a byte of a logical address lies; none where stripes are dealt out.
function placesOf(address) {
  const chunk = shown.disk.chunks.find(([start, length]) => address >= BigInt(start) && address < BigInt(start) + BigInt(length));
  return chunk ? chunk[2].map(([device, at]) => [device, BigInt(at) + address - BigInt(chunk[0])]) : [];
}
const devicesText = found => found.map(([device, at]) => `byte ${grouped(at)} of device ${device}`).join(", and at ");

// Fields beside their bytes: those from the same bytes share a row.
function fieldTable(caption, pieces, bytes, tree, places = placesOf(addressOf(bytes))) {
  const rows = new Map();
  for (const piece of pieces) {
    if (!piece.field || piece.at < 0) continue;
    const kind = form.leads[piece.field] || form.leads[`${piece.field} ${piece.how}`];
    const value = piece.how === "key" ? keyIn(bytes, piece.at) : piece.value;
    const route = kind && tree ? routeOf(kind, value, tree, piece, pieces) : null;
    const row = `${piece.at} ${piece.width}`;
    if (!rows.has(row)) rows.set(row, {name: fieldName(piece), field: piece.field, at: piece.at, width: piece.width, texts: []});
    const {texts} = rows.get(row);
    if (!texts.includes(piece.text)) texts.push(route ? link(route, piece.text) : piece.text);
  }
  const cells = [...rows.values()].map(({name, field, at, width, texts}) => [
    name, texts.flatMap((text, number) => number ? [" ", text] : [text]),
    make("code", {textContent: shortly(bytes.subarray(at, at + width))}),
    `${at}`, places.length ? grouped(places[0][1] + BigInt(at)) : "–", form.about[field] || ""]);
  const of = places.length > 1 ? ` (${places.length} copies: the first)` : "";
  const shown = table(caption, ["field", "value", "bytes", "at", `on device${of}`, "what it is"], cells);
  shown.querySelectorAll("tbody tr").forEach((row, number) => {
    const {name, at, width} = [...rows.values()][number];
    Object.assign(row.dataset, {field: name, at, width});
    row.addEventListener("mouseenter", () => mark(at, width));
    row.addEventListener("mouseleave", markChosen);
  });
  return shown;
}

// A line has 16 bytes, or 8 where there is no room for more: where the digits of a byte are in it.
const perLine = () => byId("shown").clientWidth < 600 ? 8 : 16;
const lineOf = per => 4 + 1 + per * 3 + per / 8 - 2 + 1 + per + 1;
const placeOf = (byte, per) =>
  Math.floor(byte / per) * lineOf(per) + 5 + byte % per * 3 + (byte % per > 7 ? 1 : 0);
function hexDump(bytes, start, size) {
  const dump = make("pre", {id: "hex", className: "bytes", tabIndex: 0,
    attributes: {role: "group", "aria-label": "Bytes"}});
  dump.fill = per => {
    let text = "";
    for (let at = 0; at < size; at += per) {
      const line = bytes.subarray(start + at, start + Math.min(size, at + per));
      const digits = Array.from(line, byte => hexOf([byte]));
      const halves = [digits.slice(0, 8), digits.slice(8)].slice(0, per / 8);
      const hex = halves.map(half => half.join(" ")).join("  ").padEnd(lineOf(per) - per - 7);
      const shown = Array.from(line, byte => byte > 31 && byte < 127 ? String.fromCharCode(byte) : ".");
      text += `${at.toString(16).padStart(4, "0")} ${hex} ${shown.join("").padEnd(per)}\n`;
    }
    dump.textContent = text;
    Object.assign(dump.dataset, {start, per});
  };
  dump.fill(perLine());
  return dump;
}
new ResizeObserver(() => {
  for (const dump of document.querySelectorAll("pre.bytes"))
    if (Number(dump.dataset.per) !== perLine()) {
      dump.fill(perLine());
      markChosen();
    }
}).observe(byId("shown"));
// Mark bytes in the dump; none where `width` is 0.
function mark(at, width) {
  const dump = byId("hex"), ranges = [], text = dump?.firstChild;
  for (let byte = at - (dump?.dataset.start || 0), left = width; text && left > 0; byte++, left--) {
    const place = placeOf(byte, Number(dump.dataset.per));
    if (byte < 0 || place + 2 > text.length) continue;
    const range = new Range();
    range.setStart(text, place);
    range.setEnd(text, place + 2);
    ranges.push(range);
  }
  CSS.highlights?.set("field", new Highlight(...ranges));
}

const asDumped = text => make("pre", {id: "text", tabIndex: 0, textContent: text,
  attributes: {role: "group", "aria-label": "As dump-tree shows it"}});

const blockLink = (address, slot = null) =>
  link(`block/${address}${slot === null ? "" : `/${slot}`}`, grouped(address) + (slot === null ? "" : ` slot ${slot}`));

async function whoHasBlock(address) {
  const above = (await parents()).get(address) || [];
  const rows = above.map(one => ["node ", blockLink(one.address, one.slot)]);
  for (const tree of shown.trees) if (tree.root === address) rows.push(["root of ", link(`tree/${tree.id}`, tree.name)]);
  const all = await treesWith(address);
  return [
    ...listOf(rows, "Nobody points at it."),
    make("p", {}, `It is part of ${all.length} tree${all.length === 1 ? "" : "s"}: `,
         ...all.flatMap((tree, number) => [number ? ", " : "", link(`in/${tree.id}/${address}`, tree.name)])),
  ];
}
async function whoHasExtent(bytenr) {
  const rows = await fileExtents(bytenr);
  return listOf(rows.map(({tree, inode, offset, leaf, slot}) => [
    link(`in/${tree.id}/${leaf}/${slot}`, `inode ${inode} at byte ${grouped(offset)}`), ` in ${tree.name}`]),
    "No file extent refers to it.");
}

async function showBlock(tree, address) {
  const block = await blockAt(address), pieces = headPieces(block);
  const kind = levelOf(block) ? `Node of level ${levelOf(block)}` : "Leaf";
  const above = tree.root === address ? [] : [make("p", {}, "In ", link(`tree/${tree.id}`, tree.name))];
  const extent = await extentAt(address).catch(() => null);
  show(`${kind} ${grouped(address)} of ${tree.name}`, ...above, make("p", {}, whereText(address), " ", link(`map/${address}`, "On the map")), asDumped(textOf(pieces)),
    later("Who refers to this block", () => whoHasBlock(address)),
    ...extent ? [make("p", {}, "Its item in the extent tree: ",
      link(`in/${EXTENT_TREE}/${extent.address}/${extent.slot}`, keyText(extent.key).slice(4)))] : [],
    fieldTable("Its head", pieces, block, tree),
    ...unused(block),
    make("h3", {textContent: "Bytes of the head"}), hexDump(block, 0, HEAD));
}
// The bytes of a block that nothing uses: where they are, and what.
function unused(block) {
  const count = countOf(block), first = entryAt(block, count);
  const end = levelOf(block) || !count ? block.length : payloadAt(block, count - 1)[0];
  if (first >= end) return [make("p", {textContent: "No byte is unused."})];
  const found = placesOf(addressOf(block)), isEmpty = block.subarray(first, end).every(byte => !byte);
  const on = found.length ? `: from ${devicesText(found.map(([device, at]) => [device, at + BigInt(first)]))} on` : "";
  const where = make("p", {textContent: `Unused are ${grouped(end - first)} bytes, ${grouped(first)} to ${grouped(end - 1)} of the block${on}. ` +
    (isEmpty ? "All are 0." : "Not all are 0: something was there before.")});
  if (isEmpty) return [where];
  const dump = hexDump(block, first, end - first);
  dump.id = "unused";
  return [where, make("h3", {textContent: "Unused bytes"}), dump];
}
const whereText = address => {
  const found = placesOf(address);
  return found.length ? `It lies at ${devicesText(found)}.` : "Its stripes are dealt out over devices.";
};

async function showItem(tree, address, slot) {
  const block = await blockAt(address);
  if (levelOf(block)) return showBlock(tree, childAt(block, slot));
  const key = keyAt(block, slot), [start, size] = payloadAt(block, slot), entry = entryPieces(block, slot);
  let payload = [], wrong = null;
  try { payload = payloadPieces(block, slot); }
  catch (error) { wrong = make("p", {className: "fault", textContent: `Broken: ${error.message}.`}); }
  const parts = [
    make("p", {}, "In ", link(`tree/${tree.id}`, tree.name), ", leaf ", link(`in/${tree.id}/${address}`, grouped(address)),
         `, slot ${slot}: ${grouped(size)} bytes from byte ${grouped(start)} of the block on`),
    asDumped(textOf([...entry, ...payload])),
  ];
  if (wrong) parts.push(wrong);
  const leads = (form.key_leads[key[1]] || []).flatMap((kind, part) => {
    const value = key[part * 2], route = kind ? routeOf(kind, value, tree) : null;
    return route ? [["of the key, ", part ? "offset: " : "objectid: ", link(route, `${kind} ${value}`)]] : [];
  });
  if (leads.length) parts.push(make("h3", {textContent: "Where it leads"}), ...listOf(leads));
  const bytenr = key[1] === types.EXTENT_ITEM ? key[0] : key[1] === types.EXTENT_DATA &&
    size >= sizeOf(FILE) && fieldOf(FILE, "type", block, start) ? fieldOf(FILE, "disk_bytenr", block, start) : 0n;
  if (key[1] === types.METADATA_ITEM || (bytenr && shown.places.has(bytenr)))
    parts.push(later("Who refers to this block", () => whoHasBlock(key[0])));
  else if (bytenr) parts.push(later("Who refers to this extent", () => whoHasExtent(bytenr)));
  if (stream && !shown.name && stream.trees.includes(tree.id))
    parts.push(later("Commands of the stream that it causes", () => commandsOf(key)));
  parts.push(fieldTable("Its header in the leaf", entry, block, tree));
  if (payload.some(piece => piece.field)) parts.push(fieldTable("Its fields", payload, block, tree));
  parts.push(make("h3", {textContent: `Its ${size} bytes`}), hexDump(block, start, size));
  show(`${keyText(key).slice(4)}`, ...parts);
}

// Which older roots the superblock remembers, and what there still is of each.
function rootTable(disk) {
  const rows = disk.states.map((state, number) => {
    const {generation, bytenr} = disk.roots[number], lost = Object.values(state.faults);
    const shows = state === shown ? `${generation}, which is shown` : `${generation}`;
    return [states.has(state.name) ? [state === shown ? shows : link("super", shows, state)] : shows, grouped(bytenr), number ? "a backup root" : "the last commit",
            lost.length ? `${lost.length} tree block${lost.length > 1 ? "s" : ""} lost: ${lost[0]}${lost.length > 1 ? " …" : ""}` : "all tree blocks"];
  });
  return table("Its roots, the newest first", ["generation", "root tree at", "what points at it", "what is left"], rows);
}

async function showSuper() {
  const {disk} = shown, bytes = disk.superBytes || owned(disk, await inflate(`${disk.prefix}super`)), known = new Uint8Array(256);
  const pieces = follow("super", bytes, 0, bytes.length, known);
  show("Superblock", make("p", {textContent: "It says where the root tree, the chunk tree and the tree of logs are."}),
    ...disk.roots.length > 1 ? [rootTable(disk)] : [],
    fieldTable("Its fields", pieces, bytes, shown.trees[0], [[1, BigInt(disk.super)]]), make("h3", {textContent: "Its bytes"}),
    hexDump(bytes, 0, bytes.length));
}

// -------------------------------------------------------------------------------- two trees --

const PAGE = 200;
// A table that gets more rows from a generator when they are asked for.
function growing(caption, headings, rows) {
  const shown = table(caption, headings, []), body = shown.querySelector("tbody");
  const more = make("button", {type: "button", textContent: `${PAGE} more`, hidden: true});
  async function grow() {
    more.disabled = true;
    for (let count = 0; count < PAGE; count++) {
      const {done, value} = await rows.next();
      if (done) { more.hidden = true; break; }
      body.append(tableRow(headings, value));
      more.hidden = count < PAGE - 1;
    }
    more.disabled = false;
    say(`${body.rows.length} rows`);
  }
  more.addEventListener("click", () => grow().catch(error => say(error.message)));
  return {children: [shown, more], grow};
}

function treeChoice(label, chosen) {
  const select = make("select", {}), here = new Set([shown, ...states.values()]);
  for (const state of here) {
    const all = state.trees.map(tree => make("option", {value: refOf(tree), textContent: tree.name, selected: tree === chosen}));
    if (here.size > 1) select.append(make("optgroup", {label: state.title}, ...all));
    else select.append(...all);
  }
  return make("label", {}, `${label} `, select);
}
// What stands for a tree in an address.
const refOf = tree => tree.state === shown ? tree.id : `${tree.id}~${tree.state.name}`;

// Which fields of an item differ: each with its two values.
const MOST_APART = 8;
function fieldsOf({block, slot}) {
  const seen = new Map(), fields = new Map();
  for (const piece of payloadPieces(block, slot)) {
    if (!piece.field || piece.at < 0) continue;
    const name = fieldName(piece), count = (seen.get(name) || 0) + 1;
    seen.set(name, count);
    fields.set(count > 1 ? `${name}~${count}` : name, piece.text);
  }
  return fields;
}
function fieldsApart({left, right, change}) {
  if (change !== "changed") return "–";
  try {
    const [ours, theirs] = [left, right].map(fieldsOf), apart = [];
    for (const name of new Set([...ours.keys(), ...theirs.keys()]))
      if (ours.get(name) !== theirs.get(name)) apart.push(`${name} ${ours.get(name) ?? "–"} → ${theirs.get(name) ?? "–"}`);
    const more = apart.length - MOST_APART;
    return (more > 0 ? [...apart.slice(0, MOST_APART), `${more} more`] : apart).join(", ") || "bytes that are in no field";
  } catch (error) { return error.message; }
}

async function showCompare(left, right) {
  const files = shown.trees.filter(tree => tree.files);
  const given = [left && wantedTree(left), right && wantedTree(right)];
  const chosen = [given[0] || files[0], given[1] || files[1] || files[0]];
  const form = make("form", {}, treeChoice("Compare", chosen[0]), treeChoice("with", chosen[1]),
    make("button", {textContent: "Compare"}));
  form.addEventListener("submit", event => {
    event.preventDefault();
    const [one, other] = form.querySelectorAll("select");
    go(`compare/${one.value}/${other.value}`);
  });
  if (!left || !right) return show("Compare two trees", form);
  const sides = given, blocks = await Promise.all(sides.map(blocksOf));
  const both = [...blocks[0].keys()].filter(address => isShared(address, ...sides, blocks[1])).length;
  const alone = blocks.map(some => some.size - both);
  const cell = (unit, tree) => unit ? [link(`in/${tree.id}/${unit.address}/${unit.slot}`, itemLabel(unit.block, unit.slot), tree.state)] : ["–"];
  async function* differing() {
    for await (const row of compareTrees(...sides, blocks))
      if (row.change) yield [row.change, cell(row.left, sides[0]), cell(row.right, sides[1]), fieldsApart(row)];
  }
  async function* same() {
    for await (const row of compareTrees(...sides, blocks)) {
      if (row.same) yield [`${grouped(row.same)} items`, "the same in both, in blocks of their own", "the same"];
      else if (row.shared) {
        const {shared, level, leaves} = row.shared;
        const text = `${level ? `node, ${grouped(leaves)} leaves` : "leaf"} ${grouped(shared)}`;
        yield ["shared", ...sides.map(tree => [link(`in/${tree.id}/${shared}`, text, tree.state)])];
      }
    }
  }
  const names = sides.map(treeName);
  const all = growing("What differs, in the order of keys", ["change", ...names, "fields"], differing());
  const rest = growing("What is the same, in the order of keys", ["what", ...names], same());
  show(`${names[0]} beside ${names[1]}`, form, make("p", {id: "shares", textContent:
    `They share ${grouped(both)} blocks, ${grouped(both * sides[0].state.disk.nodesize)} bytes. ` +
    `${grouped(alone[0])} blocks are in the first alone, ${grouped(alone[1])} in the second alone.`}), ...all.children, ...rest.children);
  await rest.grow();
  await all.grow();
}

// Two images beside each other: how much differs, by tree; a tree is that of the same number.
async function showBeside(name = "second") {
  const [one, other] = [states.get(""), states.get(name)];
  if (!other) throw Error(`there is no image “${name}” beside the first`);
  async function* rows() {
    const ids = new Set([one, other].flatMap(state => state.trees.map(tree => tree.id)));
    for (const id of ids) {
      const sides = [treeIn(one, id), treeIn(other, id)], [left, right] = sides;
      if (!left || !right) {
        yield [(left || right).name, left ? "in the first alone" : "in the second alone", "–", "–", "–"];
        continue;
      }
      const counts = {same: 0, changed: 0, deleted: 0, new: 0};
      try {
        const blocks = await Promise.all(sides.map(blocksOf));
        for await (const row of compareTrees(...sides, blocks)) {
          if (row.change) counts[row.change]++;
          else counts.same += row.same || 0;
        }
      } catch (error) { yield [left.name, error.message, "–", "–", "–"]; continue; }
      const apart = counts.changed + counts.deleted + counts.new;
      yield [[link(`compare/${id}~/${id}~${name}`, left.name)], apart ? "differs" : "the same",
             ...["same", "changed", "deleted", "new"].map(kind => grouped(counts[kind]))];
    }
  }
  const all = growing("Trees by their numbers, and how many of their items are in both, or in one alone",
    ["tree", "what", "the same", "changed", "in the first alone", "in the second alone"], rows());
  show(`${one.title} beside ${other.title}`, ...all.children);
  await all.grow();
}

// ----------------------------------------------------------------------------------- a stream --

const {stream} = about, CELLS = ["command", "path", "cause", "function", "change", "length", "inode", "objectid", "type", "offset"];
const commandParts = new Map();
async function commandAt(row) {
  const number = Math.floor(row / stream.per_part);
  if (!commandParts.has(number))
    commandParts.set(number, inflate(`stream${number}`).then(bytes => JSON.parse(new TextDecoder().decode(bytes))));
  const cells = await commandParts.get(number), at = row % stream.per_part;
  return Object.fromEntries(CELLS.map((name, cell) => [name, cells[cell][at]]));
}
let byItem = null;
async function commandsOf(key) {
  byItem ||= (async () => {
    const rows = new Map();
    for (let row = 0; row < stream.rows; row++) {
      const {objectid, type, offset} = await commandAt(row), item = `${objectid}.${type}.${offset}`;
      if (!rows.has(item)) rows.set(item, []);
      rows.get(item).push(row);
    }
    return rows;
  })();
  const rows = (await byItem).get(key.join(".")) || [], shown = [];
  for (const row of rows.slice(0, 50)) {
    const {command, path, cause} = await commandAt(row);
    shown.push([link(`stream/${row}`, `${row}: ${command} ${path}`), ` (${cause})`]);
  }
  if (rows.length > 50) shown.push([`… ${grouped(rows.length - 50)} more`]);
  return listOf(shown, "None.");
}
async function showStream(first, wanted) {
  const form = make("form", {}, make("label", {}, "From command ", make("input", {type: "number", min: 0, max: stream.rows - 1, value: first})),
    make("label", {}, "with the text ", make("input", {type: "text", value: wanted})), make("button", {textContent: "Show"}));
  form.addEventListener("submit", event => {
    event.preventDefault();
    const [from, text] = form.querySelectorAll("input");
    go(`stream/${Math.max(0, Number(from.value) || 0)}/${encodeURIComponent(text.value)}`);
  });
  async function* rows() {
    for (let row = first; row < stream.rows; row++) {
      const one = await commandAt(row), {command, path, cause, change, type, objectid, offset} = one;
      if (wanted && ![command, path, cause, one.function].some(text => text.includes(wanted))) continue;
      const tree = change === "deleted" && stream.trees[1] ? stream.trees[1] : stream.trees[0];
      const item = type < 0 ? [one.inode === "0" ? "the subvolume" : link(`inode/${tree}/${one.inode}`, `inode ${one.inode}`)] :
        [link(`key/${tree}/${objectid}.${type}.${offset}`, `(${objectid} ${typeNames[type]} ${offset})`), ` ${change}`];
      yield [`${row}`, [`${command} ${path}`], item, `${cause}: ${one.function}()`];
    }
  }
  const all = growing("Commands, and the items that cause them", ["number", "command", "item", "cause"], rows());
  show(`Stream of ${grouped(stream.rows)} commands`, form, ...all.children);
  await all.grow();
}
