// SPDX-License-Identifier: GPL-2.0-only
// Fields of items: follows the steps of a dump, as native/text/text.c does.

const STEP = ["", "", 0, 0, "", "", 0, 0, 0, "0", `${U64 - 1n}`];
const steps = form.steps.map(given => {
  const [how, text, place, width, field, word, inItem, least, jump, value, mask] =
    STEP.map((usual, number) => number < given.length ? given[number] : usual);
  return {how, text, place, width, field, word, inItem, least, jump,
          value: BigInt(value), mask: BigInt(mask)};
});
const utf8 = new TextDecoder("utf-8", {fatal: true, ignoreBOM: true});

// Bytes as text; what is not printable, or no UTF-8, is escaped as base/printable.py does.
function printable(bytes) {
  let text = "";
  for (let at = 0; at < bytes.length;) {
    const lead = bytes[at], size = lead < 0x80 ? 1 : lead < 0xe0 ? 2 : lead < 0xf0 ? 3 : 4;
    try {
      if (at + size > bytes.length) throw 0;
      text += escaped(utf8.decode(bytes.subarray(at, at + size)));
      at += size;
    } catch {
      text += `\\x${hexOf(bytes.subarray(at, ++at))}`;
    }
  }
  return text;
}
function escaped(one) {
  if (one === " " || !/[\p{C}\p{Z}]/u.test(one)) return one;
  const short = {"\n": "\\n", "\r": "\\r", "\t": "\\t"}[one];
  const code = one.codePointAt(0), digits = code.toString(16);
  return short || (code < 256 ? `\\x${digits.padStart(2, "0")}` : code < 65536 ?
    `\\u${digits.padStart(4, "0")}` : `\\U${digits.padStart(8, "0")}`);
}

const hexOf = bytes => Array.from(bytes, byte => byte.toString(16).padStart(2, "0")).join("");

function load(bytes, at, width) {
  let number = 0n;
  for (let byte = Math.min(width, 8) - 1; byte >= 0; byte--)
    number = number << 8n | BigInt(bytes[at + byte] || 0);
  return number;
}

const keyIn = (bytes, at) => [load(bytes, at, 8), bytes[at + 8], load(bytes, at + 9, 8)];

function sumsText(bytes, data, disk) {
  const {csum_size: width, sectorsize} = disk, count = Math.floor(bytes.length / width);
  const perLine = width < 16 ? 16 / width : 1;
  let text = "";
  for (let number = 0; number < count; number++) {
    text += number % perLine ? " [" : "\t\t[";
    text += `${data + BigInt(number * sectorsize)}] 0x`;
    text += hexOf(bytes.subarray(number * width, (number + 1) * width));
    if ((number + 1) % perLine === 0 || number + 1 === count) text += "\n";
  }
  return text;
}

// The steps of a part for bytes from `start` on: pieces of text, those of fields with the bytes that
// they come from. `known`: the item as struct bm_text_item has it.
function follow(part, bytes, start, size, known) {
  const pieces = [], tell = viewOf(known);
  const set = (name, number) => tell.setBigUint64(form.item[name][0], BigInt(number), true);
  let number = form.starts[part], at = 0, base = start, turn = 0n, turns = 0n;
  let structure = bytes; // or a copy of one that is cut short
  if (number === undefined) return pieces;
  set("rest", size);
  const wants = end => {
    if (end > size) throw Error(`the item has ${size} bytes, and not the ${end} that it needs`);
  };
  for (;; number++) {
    const step = steps[number], inItem = step.inItem;
    set("turn", turn);
    const from = inItem ? known : structure, place = (inItem ? 0 : base) + step.place;
    const value = load(from, place, step.width);
    const put = (text, first = place, width = step.width) =>
      pieces.push({text, field: step.field, how: step.how, at: inItem ? -1 : first, width, value});
    if (step.text) pieces.push({text: step.text});
    let jumps = false;
    switch (step.how) {
      case "end": return pieces;
      case "structure": {
        const width = Number(step.value), left = size - at;
        wants(at + step.least);
        structure = bytes;
        base = start + at;
        if (left < width) {
          structure = new Uint8Array(base + width);
          structure.set(bytes.subarray(base, base + left), base);
        }
        at += Math.min(left, width);
        set("rest", size - at);
        break;
      }
      case "back": at -= Math.min(at, Number(step.value)); break;
      case "count": turns = value; break;
      case "unless": jumps = (value & step.mask) !== step.value; break;
      case "unless_same":
        jumps = value !== load(from, (inItem ? 0 : base) + Number(step.value), step.width);
        break;
      case "if_more": jumps = at < size; turn++; break;
      case "if_turns": jumps = ++turn < turns; break;
      case "literal": break;
      case "decimal": put(`${value}`); break;
      case "signed": put(`${BigInt.asIntN(64, value)}`); break;
      case "octal": put(value.toString(8)); break;
      case "hex": put(value.toString(16)); break;
      case "bytes": {
        const width = step.field.endsWith(".csum") ? diskOf(bytes).csum_size : step.width;
        put(hexOf(from.subarray(place, place + width)), place, width);
        break;
      }
      case "uuid": {
        const hex = hexOf(from.subarray(place, place + 16));
        put(hex.replace(/(.{8})(.{4})(.{4})(.{4})/, "$1-$2-$3-$4-"), place, 16);
        break;
      }
      case "text": put(printable(from.subarray(place, place + step.width))); break;
      case "time": put(timeText(value)); break;
      case "objectid": put(objectid(value, 0)); break;
      case "key": put(keyText(keyIn(from, place)), place, 17); break;
      case "key_objectid": put(objectid(load(from, place, 8), from[place + 8]), place, 8); break;
      case "word": put(WORDS_OF[step.word](value)); break;
      case "name": case "string": case "rest": {
        const width = step.how === "rest" ? size - at : Number(value), first = start + at;
        wants(at + width);
        at += width;
        set("rest", size - at);
        let name = bytes.subarray(first, first + (step.how === "name" ? Math.min(width, 255) : width));
        if (name.includes(0)) name = name.subarray(0, name.indexOf(0));
        put(printable(name), first, width);
        break;
      }
      case "sums":
        put(sumsText(bytes.subarray(start, start + size), load(known, 9, 8), diskOf(bytes)), start, size);
        break;
      default: throw Error(`a field has the value ${value}, which none can have`);
    }
    if (jumps) number += step.jump;
  }
}

// What is known of an item, or of a block, beside its bytes.
function itemKnown(block, slot) {
  const known = new Uint8Array(256), tell = viewOf(known);
  const set = (name, number) => tell.setBigUint64(form.item[name][0], BigInt.asUintN(64, number), true);
  if (slot === null) {
    const flags = load(block, ...HEADER.fields.flags), count = countOf(block), room = block.length - HEAD;
    let free = Math.floor(room / POINTER) - count;
    if (!levelOf(block)) free = count ? payloadAt(block, count - 1)[0] - HEAD - count * ITEM : room;
    set("free_space", BigInt(free));
    set("revision", flags >> 56n);
    set("flags", flags & 2n ** 56n - 1n);
    return known;
  }
  const at = entryAt(block, slot);
  known.set(block.subarray(at, at + KEY));
  set("slot", BigInt(slot));
  if (!levelOf(block)) {
    const {csum_size, sectorsize} = diskOf(block);
    const length = BigInt(Math.floor(payloadAt(block, slot)[1] / csum_size) * sectorsize);
    set("length", length);
    set("end", load(block, at + 9, 8) + length);
  }
  return known;
}

// Pieces of the head of a block, of a pointer or an item's header, and of an item's payload.
const headPieces = block =>
  follow(levelOf(block) ? "node" : "leaf", block, 0, block.length, itemKnown(block, null));
function entryPieces(block, slot) {
  const isNode = levelOf(block) > 0;
  return follow(isNode ? "pointer" : "item", block, entryAt(block, slot),
                isNode ? POINTER : ITEM, itemKnown(block, slot));
}
function payloadPieces(block, slot) {
  const [start, size] = payloadAt(block, slot);
  return follow(keyAt(block, slot)[1], block, start, size, itemKnown(block, slot));
}
const textOf = pieces => pieces.map(piece => piece.text).join("");
const fieldName = piece => piece.field.slice(piece.field.indexOf(".") + 1);

// An item in one line: its key, and what one looks for first.
function itemLabel(block, slot) {
  const key = keyAt(block, slot);
  let said = "";
  try {
    const wanted = form.says[key[1]] || [], seen = new Set();
    for (const piece of wanted.length ? payloadPieces(block, slot) : []) {
      const name = piece.field ? fieldName(piece) : "";
      if (!wanted.includes(name) || seen.has(piece.at)) continue;
      seen.add(piece.at);
      said += name === "name" ? ` “${piece.text}”` : ` ${name === "REST" ? "inline" : name} ${piece.text}`;
    }
  } catch { said = " (broken)"; }
  return keyText(key).slice(4) + said;
}
