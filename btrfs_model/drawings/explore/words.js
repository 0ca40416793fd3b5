// SPDX-License-Identifier: GPL-2.0-only
// Words for numbers, as dumps write them, and the numbers that words stand for: the rules of
// ondisk/keys.py and questions/dumptree/templates.py, by their tables.

const U64 = 2n ** 64n;
const typeNames = Object.fromEntries(Object.entries(form.types).map(([name, number]) => [number, name]));
const objectNumbers = Object.fromEntries(Object.entries(form.object_names).map(([number, name]) => [name, number]));

function flagText(kind, flags) {
  const [names, none] = form.flags[kind];
  return names.filter(([bit]) => flags & BigInt(bit)).map(([, name]) => name).join("|") || none;
}
const PROFILES = Object.keys(form.names.profile).reduce((mask, bit) => mask | BigInt(bit), 0n);
const WORDS_OF = {
  inode_flags: number => flagText("inode_flags", number),
  header_flags: number => flagText("header_flags", number),
  root_flags: number => flagText("root_flags", number),
  extent_flags: number => flagText("extent_kind", number) + (number & 256n ? "|FULL_BACKREF" : ""),
  block_group_flags: number => {
    const profile = number & PROFILES;
    return flagText("block_group_content", number) + (form.names.profile[profile] ?? `|UNKNOWN.0x${profile.toString(16)}`);
  },
  qgroup_flags: number => (number & 1n ? "ON" : "OFF") + (number & 2n ? "|SCANNING" : "") + (number & 4n ? "|INCONSISTENT" : ""),
  compression: number => form.names.compression[number] ?? `UNKNOWN.${number}`,
  file_extent_type: number => form.names.file_extent_type[number] ?? "unknown",
  file_type: number => form.names.file_type[number] ?? `DIR_ITEM.${number}`,
};

// ------------------------------------------------------------------------------------- keys --

const qgroupText = number => `${number >> 48n}/${number & (1n << 48n) - 1n}`;
const longHex = number => `0x${number.toString(16).padStart(16, "0")}`;
const objectText = number => form.object_names[number] ?? (number === U64 - 1n ? "-1" : `${number}`);
const {types} = form;
// Types of which the objectid is no object, and of which the offset is no plain number.
const OBJECTID_OF = {
  [types.PERSISTENT_ITEM]: number => number ? `${number}` : "DEV_STATS",
  [types.DEV_EXTENT]: number => `${number}`,
  [types.QGROUP_RELATION]: qgroupText,
  [types.UUID_KEY_SUBVOL]: longHex,
  [types.UUID_KEY_RECEIVED_SUBVOL]: longHex,
  [types.DEV_ITEM]: number => number === 1n ? "DEV_ITEMS" : objectText(number),
  [types.CHUNK_ITEM]: number => number === 256n ? "FIRST_CHUNK_TREE" : objectText(number),
};
const OFFSET_OF = {
  [types.QGROUP_RELATION]: qgroupText,
  [types.QGROUP_INFO]: qgroupText,
  [types.QGROUP_LIMIT]: qgroupText,
  [types.UUID_KEY_SUBVOL]: longHex,
  [types.UUID_KEY_RECEIVED_SUBVOL]: longHex,
  [types.ROOT_ITEM]: (offset, number) => `${number}` === form.objects.TREE_RELOC ? objectText(offset) : `${offset}`,
};
const objectid = (number, type) => (OBJECTID_OF[type] || objectText)(number);
function keyText([number, type, offset]) {
  const kind = !type && `${number}` === form.objects.FREE_SPACE ? "UNTYPED" : typeNames[type] || `UNKNOWN.${type}`;
  const last = OFFSET_OF[type] ? OFFSET_OF[type](offset, number) : offset === U64 - 1n ? "-1" : `${offset}`;
  return `key (${objectid(number, type)} ${kind} ${last})`;
}

const number = (text = "") => {
  const plain = text.trim().replace(/[,\s]/g, "");
  if (!/^(0x[0-9a-f]+|-?\d+)$/i.test(plain)) throw Error(`“${text}” is no number`);
  return BigInt.asUintN(64, BigInt(plain));
};
// A number or a name of an object; “2/7” is a quota group.
function objectFrom(text, type) {
  const [, level, id] = text.match(/^(\d+)\/(\d+)$/) || [];
  if (level) return number(level) << 48n | number(id);
  const special = {[types.PERSISTENT_ITEM]: {DEV_STATS: 0n}, [types.DEV_ITEM]: {DEV_ITEMS: 1n}, [types.CHUNK_ITEM]: {FIRST_CHUNK_TREE: 256n}};
  const own = special[type] || {};
  if (Object.hasOwn(own, text)) return own[text];
  const known = [objectNumbers, form.objects].find(names => Object.hasOwn(names, text));
  return known ? BigInt(known[text]) : number(text);
}
// A key as a dump writes it, with or without what stands around it, or as three numbers.
function keyFrom(text = "") {
  const [, inside = ""] = text.match(/(?:.*\bkey\s+)?\(?([^()]*)/) || [];
  const [first = "0", kind = "0", last = "0"] = inside.trim().split(/[\s.,]+/).join(" ").replace(/UNKNOWN /, "UNKNOWN.").split(" ");
  const type = kind === "UNTYPED" ? 0 : Number(Object.hasOwn(types, kind) ? types[kind] : number(kind.replace("UNKNOWN.", "")));
  return [objectFrom(first, type), type, objectFrom(last, type)];
}

// ------------------------------------------------------------------------------------- times --

const CYCLE = 146097 * 86400; // seconds of 400 years, after which the calendar is the same
function timeText(second) {
  const signed = BigInt.asIntN(64, second), rest = (signed % BigInt(CYCLE) + BigInt(CYCLE)) % BigInt(CYCLE);
  const usual = new Date(Number(signed) * 1000), year = usual.getFullYear(), isUsual = year >= 1000 && year <= 9999;
  const date = isUsual ? usual : new Date(Number(rest) * 1000);
  const shown = isUsual ? `${year}` : `${BigInt(date.getFullYear()) + 400n * ((signed - rest) / BigInt(CYCLE))}`;
  const two = number => `${number}`.padStart(2, "0");
  return `${shown}-${two(date.getMonth() + 1)}-${two(date.getDate())} ` +
    [date.getHours(), date.getMinutes(), date.getSeconds()].map(two).join(":");
}
