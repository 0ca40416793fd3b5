// SPDX-License-Identifier: GPL-2.0-only
// Where an address of this page leads, and how one goes there.

async function showAt(tree, address, slot) {
  const way = await wayTo(tree, address);
  if (!way) throw Error(`block ${address} is not in ${tree.name}`);
  const count = countOf(await blockAt(address));
  if (slot !== null && !(slot < count)) throw Error(`block ${address} has ${count} items, and no slot ${slot}`);
  await reveal(tree, way, slot);
  await (slot === null ? showBlock(tree, address) : showItem(tree, address, slot));
}
async function showFound(tree, path, exactly) {
  const item = await found(path);
  if (!item) throw Error(`${tree.name} has nothing there, nor behind it`);
  await showAt(tree, item.address, item.slot);
  if (exactly && compareKeys(item.key, exactly)) say(`There is no (${exactly.join(" ")}); this is what comes next.`);
}
const slotFrom = text => text === undefined ? null : Number(number(text));
const wantedTree = (id = "") => {
  const tree = treeOf(id);
  if (!tree) throw Error(`there is no tree “${id}”`);
  return tree;
};
async function showAddress(address) {
  if (shown.places.has(address)) return showBlockSomewhere(address, null);
  if (shown.faults[address]) throw Error(shown.faults[address]);
  const extent = await extentAt(address);
  if (!extent) throw Error(`no extent has the address ${address}`);
  await showAt(treeOf(EXTENT_TREE), extent.address, extent.slot);
}
async function showBlockSomewhere(address, slot) {
  const all = await treesWith(address);
  if (!all.length) throw Error(`no tree has a block at ${address}`);
  // in the tree that was looked at, if it is there
  await showAt(all.find(tree => tops.get(tree.id).contains(current)) || all[0], address, slot);
}

// The bytes that a name may stand for: its own, or with its escapes undone; \xa0 may stand for a byte
// or for a character.
function bytesOf(name) {
  const encode = text => [...new TextEncoder().encode(text)];
  const controls = {"\\n": "\n", "\\r": "\r", "\\t": "\t"};
  const parts = /\\x([0-9a-f]{2})|\\u([0-9a-f]{4})|\\U([0-9a-f]{8})|\\[nrt]|[^]/gu;
  const undone = isByte => [...name.matchAll(parts)].flatMap(([whole, two, four, eight]) => {
    const code = parseInt(two || four || eight, 16);
    if (two && isByte) return [code];
    return encode(code <= 0x10ffff ? String.fromCodePoint(code) : controls[whole] || whole);
  });
  return [encode(name), undone(true), undone(false)];
}
async function showPath(tree, path) {
  let inode = 256n;
  for (const name of path.split("/").filter(name => name && name !== ".")) {
    let entry = null;
    for (const bytes of bytesOf(name)) {
      const key = [inode, types.DIR_ITEM, BigInt(nameHash(bytes))];
      const item = await found(await search(tree, key));
      if (item && !compareKeys(item.key, key)) entry ||= entryNamed(item, bytes);
    }
    if (!entry) throw Error(`${tree.name} has no “${name}” in directory ${inode}`);
    inode = entry[0];
    if (entry[1] === types.ROOT_ITEM) [tree, inode] = [wantedTree(inode), 256n];
  }
  await showFound(tree, await search(tree, [inode, types.INODE_ITEM, 0n]));
}
// The location that an entry of a directory has; several names may have one hash.
function entryNamed({block, slot}, name) {
  let location = null;
  const wanted = printable(Uint8Array.from(name));
  for (const piece of payloadPieces(block, slot)) {
    if (piece.field === "btrfs_dir_item.location") location = keyIn(block, piece.at);
    if (piece.field === "btrfs_dir_item.name" && piece.text === wanted) return location;
  }
  return null;
}

const ROUTES = {
  "": showSuper,
  super: showSuper,
  tree: id => showAt(wantedTree(id), wantedTree(id).root, null),
  in: (id, address, slot) => showAt(wantedTree(id), number(address), slotFrom(slot)),
  block: (address, slot) => showBlockSomewhere(number(address), slotFrom(slot)),
  address: address => showAddress(number(address)),
  inode: async (id, inode) => {
    const tree = wantedTree(id), key = [number(inode), 0, 0n], path = await search(tree, key);
    if ((await found(path))?.key[0] !== key[0]) throw Error(`${tree.name} has no inode ${inode}`);
    await showFound(tree, path);
  },
  key: async (id, text) => showFound(wantedTree(id), await search(wantedTree(id), keyFrom(text)), keyFrom(text)),
  path: (id, ...names) => showPath(wantedTree(id), names.join("/")),
  compare: showCompare,
  beside: showBeside,
  map: showMap,
  files: showFiles,
  stream: (first = "0", text = "") => {
    if (!stream) throw Error("this page has no send stream");
    return showStream(Number(number(first)), text);
  },
};

let from = ""; // who asked: "link", "search", "tree", "state", "start"; "" the browser, for an address
function go(route, source = "link", chosen = {}) {
  const hash = hashOf(route, chosen);
  from = source;
  if (isFramed() || location.hash.slice(1) === hash) showRoute(hash);
  else location.hash = hash;
}
// One after the other, so that what was asked for last is what is shown.
let shownBefore = Promise.resolve();
function showRoute(hash) {
  const mine = ++turn, source = from;
  from = "";
  shownBefore = shownBefore.then(() => showNow(hash, mine, source));
  return shownBefore;
}
async function showNow(hash, mine, source) {
  const isGiven = ["", "start", "state"].includes(source);
  document.body.setAttribute("aria-busy", "true");
  say("");
  try {
    const asked = readHash(hash), {route, name, parts, chosen} = asked;
    if (!Object.hasOwn(ROUTES, name)) throw Error(`there is nothing called “${name}”`);
    const state = states.get(chosen.of || "");
    if (!state) throw Error(`there is no “${chosen.of}” to look at`);
    lookAt(state);
    await unfoldExactly(chosen.open);
    if (isGiven) fillSearch(name, parts);
    const before = unfolded;
    await ROUTES[name](...parts);
    if (unfolded === before) foldBefore(); // it is in no tree
    here = asked;
    nameFields();
    const field = chosen.field ? chooseField(chosen.field) : null;
    if (source !== "tree" && source !== "start") (field || byId("title")).focus({preventScroll: true});
    const spot = document.querySelector("#shown .here") || document.querySelector("#shown [aria-current]");
    (spot || byId("title")).scrollIntoView({block: spot ? "center" : "nearest"});
    if (!byId("said").textContent) say(field ? `${byId("title").textContent}, ${chosen.field}` : byId("title").textContent);
  } catch (error) {
    // of an address that leads nowhere nothing is shown; after a search it is what was shown before
    if (isGiven) await showStart(source === "state" ? shown : states.get(""));
    say(isGiven ? `${error.message}: this is where the page begins` : error.message);
  }
  if (mine === turn) document.body.removeAttribute("aria-busy");
}
async function showStart(state) {
  lookAt(state);
  await showSuper();
  foldBefore();
  choose(byId("tree").firstChild);
  here = {route: "", chosen: {}};
  nameFields();
}
addEventListener("hashchange", () => showRoute(location.hash.slice(1)));
document.addEventListener("click", event => {
  const anchor = event.target.closest("a[href^='#']");
  if (!anchor) return;
  event.preventDefault();
  const [route] = anchor.getAttribute("href").slice(1).split("?"), {of, field} = anchor.dataset;
  go(route, "link", {of, field});
});

function fillSearch(name, parts) {
  if (!["path", "key", "inode", "address"].includes(name)) return;
  const [tree, ...wanted] = name === "address" ? [byId("in").value, ...parts] : parts;
  byId("kind").value = name;
  byId("wanted").value = wanted.join("/");
  if (treeOf(tree)) byId("in").value = tree;
}
byId("search").addEventListener("submit", event => {
  event.preventDefault();
  const kind = byId("kind").value, text = byId("wanted").value, tree = byId("in").value;
  go(kind === "address" ? `address/${encodeURIComponent(text)}` : `${kind}/${tree}/${encodeURIComponent(text)}`, "search");
});

// From now on a state is what is looked at.
function lookAt(state) {
  if (state === shown) return;
  shown = state;
  const top = treeItem("superblock", "super"), {trees} = state, faults = Object.values(state.faults);
  tops.clear();
  unfolded = new Set();
  current = null;
  byId("tree").replaceChildren(top, ...trees.map(tree => {
    const one = treeItem(tree.name, `tree/${tree.id}`, () => entriesOf(tree, tree.root, tree.level));
    tops.set(tree.id, one);
    return one;
  }));
  choose(top);
  const files = trees.find(tree => tree.files);
  byId("in").replaceChildren(...trees.map(tree =>
    make("option", {value: tree.id, textContent: tree.name, selected: tree === files})));
  byId("lost").hidden = !faults.length;
  byId("lost").replaceChildren(make("summary", {textContent: `${faults.length} tree blocks cannot be read`}),
    make("ul", {}, ...faults.map(text => make("li", {textContent: text}))));
  document.title = byId("name").textContent = state.title;
  byId("state").value = state.name;
}
function listStates() {
  byId("state").replaceChildren(...[...states.values()].map(state => make("option", {value: state.name, textContent: state.title})));
  byId("states").hidden = states.size < 2;
}
byId("states").addEventListener("submit", event => {
  event.preventDefault();
  go(here.route, "state", {of: byId("state").value});
});

(async () => {
  for (const disk of about.disks) await addDisk(disk);
  listStates();
  lookAt(states.get(""));
  from = "start"; // a page in a frame leaves the focus where it is
  await showRoute(isFramed() ? "" : location.hash.slice(1));
})();
