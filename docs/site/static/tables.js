// SPDX-License-Identifier: GPL-2.0-only
// Tables fit the column of a page: names in them may be broken behind their marks, and one that is
// still too wide is shown row by row, each cell with the heading of its column.
"use strict";

const MARKS = /(?<=[a-zA-Z0-9][/_]|::)(?=[a-zA-Z])/;

function breakable(table) {
  const texts = document.createTreeWalker(table, NodeFilter.SHOW_TEXT);
  const all = [];
  while (texts.nextNode()) all.push(texts.currentNode);
  for (const text of all) {
    const [first, ...rest] = text.data.split(MARKS);
    if (!rest.length || text.parentElement.closest("svg")) continue;
    const pieces = rest.flatMap((piece) => [document.createElement("wbr"), piece]);
    text.replaceWith(first, ...pieces);
  }
}

// An empty corner is no heading.
function corner(table) {
  for (const head of table.querySelectorAll("th")) {
    if (head.textContent.trim()) continue;
    const cell = document.createElement("td");
    for (const one of head.attributes) cell.setAttribute(one.name, one.value);
    head.replaceWith(cell);
  }
}

// The cells of rows by their columns; one that spans some is in each.
function grid(rows) {
  const places = [...rows].map(() => []);
  [...rows].forEach((row, y) => {
    let x = 0;
    for (const cell of row.cells) {
      while (places[y][x]) x++;
      for (let down = 0; down < cell.rowSpan && places[y + down]; down++)
        for (let right = 0; right < cell.colSpan; right++) places[y + down][x + right] = cell;
    }
  });
  return places;
}

function name(table) {
  const heads = table.tHead ? grid(table.tHead.rows) : [];
  const words = [];
  for (const row of heads)
    row.forEach((cell, x) => {
      const word = cell.textContent.trim();
      if (word && !(words[x] ||= []).includes(word)) words[x].push(word);
    });
  for (const body of table.tBodies)
    grid(body.rows).forEach((row, y) => {
      row.forEach((cell, x) => {
        if (cell.parentElement === body.rows[y] && !("label" in cell.dataset))
          cell.dataset.label = (words[x] || []).join(", ");
      });
    });
}

// A table that is no longer shown as one stays one for those who hear it.
function role(table) {
  table.setAttribute("role", "table");
  for (const part of [table.tHead, ...table.tBodies].filter(Boolean)) {
    part.setAttribute("role", "rowgroup");
    for (const row of part.rows) {
      row.setAttribute("role", "row");
      for (const cell of row.cells) {
        const isHead = cell.tagName === "TH";
        const kind = part === table.tHead ? "columnheader" : "rowheader";
        cell.setAttribute("role", isHead ? kind : "cell");
      }
    }
  }
}

function fit(table) {
  const box = table.closest("article, .bd-content") || document.body;
  table.classList.remove("by-row");
  const right = box.getBoundingClientRect().right;
  const isWide = () => table.getBoundingClientRect().right > right + 1;
  table.classList.toggle("by-row", isWide());
}

const TABLES = [...document.querySelectorAll("article table:not(.indextable, .highlighttable)")];
for (const table of TABLES) {
  breakable(table);
  corner(table);
  name(table);
  role(table);
}
let width = 0;
new ResizeObserver(() => {
  if (width === window.innerWidth) return;
  width = window.innerWidth;
  TABLES.forEach(fit);
}).observe(document.documentElement);
