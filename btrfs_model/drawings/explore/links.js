// SPDX-License-Identifier: GPL-2.0-only
// The address of what is shown, behind the “#”: a route, then what is chosen in it, as in
// “in/5/5390336/3?of=@7&field=size&open=2,5:5390336”. `of` is a state by its name, `open` has what was
// unfolded by hand: trees and blocks.

const CHOICES = ["of", "field", "open"];

function decoded(text) {
  try { return decodeURIComponent(text); }
  catch { throw Error(`“${text}” is not written as an address is`); }
}

function readHash(hash) {
  const [route, ...rest] = hash.split("?"), chosen = {};
  for (const part of rest.join("?").split("&").filter(one => one)) {
    const [name, ...value] = part.split("=");
    if (!CHOICES.includes(name)) throw Error(`there is nothing called “${decoded(name)}” to choose`);
    chosen[name] = decoded(value.join("="));
  }
  const [name, ...parts] = route.split("/").map(decoded);
  return {route, name, parts, chosen};
}

const chosenText = chosen => CHOICES.filter(name => chosen[name]).map(name => `${name}=${chosen[name]}`).join("&");
function hashOf(route, {of = shown.name, ...chosen}) {
  const open = of === shown.name ? unfoldedByHand().join(",") : "";
  const text = chosenText({of, open, ...chosen});
  return text ? `${route}?${text}` : route;
}

// A page in a frame has no address of its own.
const isFramed = () => location.href.startsWith("about:");
// What was unfolded or folded belongs to what is shown: no new entry in the history.
function keepUnfolded() {
  if (isFramed()) return;
  const {route, chosen} = here;
  history.replaceState(null, "", `#${hashOf(route, {field: chosen.field})}`);
}

let here = {route: "", chosen: {}}; // what is shown

// ------------------------------------------------------------------------------------ a field --

// Give each field that is shown a name of its own and a link: the second `offset` is “offset~2”.
function nameFields() {
  const seen = new Map();
  for (const row of document.querySelectorAll("#shown tr[data-field]")) {
    const {field} = row.dataset, count = (seen.get(field) || 0) + 1, cell = row.firstChild;
    seen.set(field, count);
    row.dataset.name = count > 1 ? `${field}~${count}` : field;
    const anchor = make("a", {textContent: cell.textContent});
    Object.assign(anchor.dataset, {field: row.dataset.name, of: shown.name});
    anchor.href = `#${here.route}?${chosenText(anchor.dataset)}`;
    cell.replaceChildren(anchor);
  }
}
const chosenField = () => document.querySelector("#shown tr[aria-current]");
function chooseField(name) {
  const row = [...document.querySelectorAll("#shown tr[data-field]")].find(one => one.dataset.name === name);
  if (!row) throw Error(`what is shown has no field “${name}”`);
  row.setAttribute("aria-current", "true");
  markChosen();
  return row.querySelector("a");
}
// Mark the bytes of the field that is chosen, or none.
function markChosen() {
  const {at, width} = chosenField()?.dataset || {at: 0, width: 0};
  mark(Number(at), Number(width));
}

// --------------------------------------------------------------------------- what is unfolded --

// By hand, in the order of the page: “5” is a tree, “5:5390336” a block in it.
const byHand = () =>
  [...byId("tree").querySelectorAll("[aria-expanded=true]")].filter(one => !unfolded.has(one));
const nameOf = one => nodes.get(one).route.replace(/^(tree|in)\//, "").replace("/", ":");
const unfoldedByHand = () => byHand().map(nameOf);
// Unfold these, and fold what else was unfolded by hand.
async function unfoldExactly(text) {
  const wanted = new Set(text ? text.split(",") : []), have = new Set(unfoldedByHand());
  for (const name of wanted) {
    if (have.has(name)) continue;
    const [id, address] = name.split(":"), tree = wantedTree(id);
    const way = address === undefined ? [] : await wayTo(tree, number(address));
    if (!way) throw Error(`block ${address} is not in ${tree.name}`);
    let one = tops.get(tree.id);
    for (const {slot} of way) one = (await unfold(one))[slot];
    await unfold(one);
    for (let up = one; up; up = up.parentElement.closest("[role=treeitem]")) unfolded.delete(up);
  }
  for (const one of byHand()) if (!wanted.has(nameOf(one))) fold(one);
}

// -------------------------------------------------------------------------------- to share it --

async function copyLink() {
  try {
    await navigator.clipboard.writeText(location.href);
    say("The link to what is shown is copied.");
  } catch { say(`The browser does not let this page copy. The link is ${location.href}`); }
}
byId("copy").addEventListener("click", copyLink);
byId("copy").hidden = isFramed();
