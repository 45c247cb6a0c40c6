// Draw how late each peer was in each of the last rounds, on one canvas: 500 peers x 50 rounds are 25,000 cells.

import { byId, setText, show } from "./dom.js";
import { duration, shortName } from "./format.js";

const LABEL_WIDTH = 110;
const HEAD_HEIGHT = 16;
const TALLEST = 20;
const LOWEST = 4;
const MAX_HEIGHT = 640;
const LEAST_SCALE_S = 0.5;

let table = { rounds: [], cells: [] };
let names = []; // names of the peers, in the order of table.cells
let cursor = null; // [row, column]

export function showTimeline(newest) {
  table = newest;
  show("timeline", table.rounds.length > 0 && table.cells.length > 0);
  draw();
}

// The names come with another part of the page, and not in every update.
export function nameRows(peers) {
  const newest = peers.map((peer) => peer.name);
  if (newest.join() === names.join()) return;
  names = newest;
  draw();
}

// A full bar is the longest lateness that is shown, but at least half a second, so that noise looks small.
function scale() {
  let longest = LEAST_SCALE_S;
  for (const row of table.cells) for (const cell of row) if (typeof cell === "number" && cell > longest) longest = cell;
  return longest;
}

function geometry() {
  const canvas = byId("timeline-canvas");
  const width = canvas.clientWidth || 600;
  const rowHeight = Math.max(LOWEST, Math.min(TALLEST, Math.floor(MAX_HEIGHT / Math.max(1, table.cells.length))));
  const labels = rowHeight >= 11 ? LABEL_WIDTH : 0;
  const columnWidth = (width - labels) / Math.max(1, table.rounds.length);
  return { canvas, width, rowHeight, labels, columnWidth, height: HEAD_HEIGHT + rowHeight * table.cells.length };
}

function draw() {
  if (!table.rounds.length) return;
  const place = geometry();
  const { canvas, width, height } = place;
  const ratio = window.devicePixelRatio || 1;
  canvas.width = Math.round(width * ratio);
  canvas.height = Math.round(height * ratio);
  canvas.style.height = `${height}px`;
  const brush = canvas.getContext("2d");
  brush.scale(ratio, ratio);
  const colours = palette();
  drawHead(brush, place, colours);
  const full = scale();
  setText(byId("timeline-scale"), duration(full));
  table.cells.forEach((row, i) => drawRow(brush, place, colours, row, i, full));
  if (cursor) drawCursor(brush, place, colours);
}

function palette() {
  const style = getComputedStyle(document.documentElement);
  const names = ["text", "quiet", "line", "good", "late", "bad", "accent", "panel"];
  return Object.fromEntries(names.map((name) => [name, style.getPropertyValue(`--${name}`).trim()]));
}

function drawHead(brush, { labels, columnWidth }, colours) {
  brush.fillStyle = colours.quiet;
  brush.font = "11px system-ui, sans-serif";
  const every = Math.ceil(44 / columnWidth);
  table.rounds.forEach((round, i) => {
    if (i % every === 0) brush.fillText(String(round), labels + i * columnWidth, 11);
  });
}

function drawRow(brush, { labels, columnWidth, rowHeight }, colours, row, i, full) {
  const top = HEAD_HEIGHT + i * rowHeight;
  const high = Math.max(2, rowHeight - 2);
  if (labels) {
    brush.fillStyle = colours.text;
    brush.fillText(shortName(names[i] ?? "").slice(0, 16), 0, top + high - 2, labels - 6);
  }
  row.forEach((cell, j) => {
    const left = labels + j * columnWidth;
    const wide = Math.max(1, columnWidth - 1.5);
    if (cell === null) return;
    if (typeof cell === "number") {
      brush.fillStyle = colours.panel;
      brush.fillRect(left, top, wide, high);
      brush.fillStyle = cell > full / 3 ? colours.late : colours.good;
      brush.fillRect(left, top, Math.max(1.5, (wide * cell) / full), high);
    } else {
      brush.fillStyle = cell === "failed" ? colours.bad : colours.line;
      brush.fillRect(left, top, wide, high);
      brush.fillStyle = colours.text;
      if (rowHeight >= 11) brush.fillText(cell === "failed" ? "×" : "–", left + wide / 2 - 3, top + high - 2);
    }
  });
}

function drawCursor(brush, { labels, columnWidth, rowHeight }, colours) {
  const [row, column] = cursor;
  brush.strokeStyle = colours.accent;
  brush.lineWidth = 2;
  brush.strokeRect(labels + column * columnWidth, HEAD_HEIGHT + row * rowHeight, columnWidth, rowHeight);
}

function describe([row, column]) {
  const cell = table.cells[row]?.[column];
  const words = cell === null || cell === undefined ? "no record" : typeof cell === "number" ? `${duration(cell)} late` : cell;
  return `round ${table.rounds[column]}, ${shortName(names[row] ?? "")}: ${words}`;
}

function moveTo(row, column) {
  const limit = (x, count) => Math.max(0, Math.min(count - 1, x));
  cursor = [limit(row, table.cells.length), limit(column, table.rounds.length)];
  setText(byId("timeline-readout"), describe(cursor));
  draw();
}

const MOVES = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] };

byId("timeline-canvas").addEventListener("keydown", (event) => {
  const move = MOVES[event.key];
  if (!move) return;
  event.preventDefault();
  const [row, column] = cursor ?? [0, table.rounds.length - 1];
  moveTo(row + move[0], column + move[1]);
});
byId("timeline-canvas").addEventListener("pointermove", (event) => {
  const { labels, columnWidth, rowHeight } = geometry();
  moveTo(Math.floor((event.offsetY - HEAD_HEIGHT) / rowHeight), Math.floor((event.offsetX - labels) / columnWidth));
});
byId("timeline-canvas").addEventListener("pointerleave", () => {
  cursor = null;
  draw();
});
window.addEventListener("resize", draw);
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", draw);
