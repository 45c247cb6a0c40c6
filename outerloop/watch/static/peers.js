// Show the table of peers. Rows are kept and their cells changed, and new rows are built a few at a time.

import { byId, copyButton, element, setClass, setText, show } from "./dom.js";
import { age, amount, decimal, duration, integer, milliseconds, mood, shortName, withShortNames } from "./format.js";

const ROWS_AT_ONCE = 40;
const COLUMNS = [
  { name: "peer", word: true, value: (peer) => peer.name },
  { name: "name", word: true, value: (peer) => peer.public_name },
  { name: "state", word: true, value: (peer) => peer.state },
  { name: "reason and cure", word: true, value: (peer) => withShortNames([peer.reason, peer.cure].filter(Boolean).join(" → ")) },
  { name: "round", value: (peer) => peer.round, text: integer },
  { name: "step", value: (peer) => peer.step, text: integer },
  { name: "loss", value: (peer) => peer.loss, text: (x) => decimal(x) },
  { name: "tokens/s", value: (peer) => peer.tokens_per_s, text: (x) => amount(x) },
  { name: "samples", value: (peer) => peer.samples, text: (x) => amount(x) },
  { name: "sent", value: (peer) => peer.bytes_sent, text: (x) => amount(x, "B") },
  { name: "received", value: (peer) => peer.bytes_received, text: (x) => amount(x, "B") },
  { name: "late", value: (peer) => peer.late_s, text: duration },
  { name: "refused", value: (peer) => peer.refused, text: integer },
  { name: "path", word: true, value: (peer) => path(peer) },
  { name: "round trip", value: (peer) => peer.round_trip_s, text: milliseconds },
  { name: "address", word: true, value: (peer) => peer.address },
  { name: "updated", value: (peer) => peer.age_s, text: age },
];
const STATE = COLUMNS.findIndex((column) => column.name === "state");
const path = (peer) => (peer.relayed === null ? "" : peer.relayed ? "relayed" : "direct");
const isEmpty = (value) => value === null || value === "";

const rows = new Map(); // name of a peer -> its row
let peers = [];
let sorted = { column: 0, descending: false };
let scheduled = false;

export function showPeers(newest) {
  peers = newest;
  show("peers", peers.length > 0);
  setText(byId("peers-count"), `${peers.length}`);
  update();
}

function update() {
  const head = byId("peers-table").tHead.rows[0];
  if (!head.childElementCount) head.append(...COLUMNS.map(headCell));
  const known = COLUMNS.map((column) => peers.some((peer) => !isEmpty(column.value(peer))));
  [...head.children].forEach((cell, i) => {
    cell.hidden = !known[i];
    cell.ariaSort = i !== sorted.column ? "none" : sorted.descending ? "descending" : "ascending";
  });
  const shown = visible();
  const names = new Set(shown.map((peer) => peer.name));
  for (const [name, row] of rows) if (!names.has(name)) remove(name, row);
  fill(shown, known);
}

function visible() {
  const wanted = byId("peers-filter").value.toLowerCase();
  const { value } = COLUMNS[sorted.column];
  const matching = peers.filter((peer) => COLUMNS.some((column) => column.word && column.value(peer).toLowerCase().includes(wanted)));
  const order = sorted.descending ? -1 : 1;
  return matching.sort((a, b) => order * compare(value(a), value(b)) || compare(a.name, b.name));
}

function compare(a, b) {
  if (isEmpty(a) || isEmpty(b)) return isEmpty(a) - isEmpty(b);
  return typeof a === typeof b ? (a < b ? -1 : a > b ? 1 : 0) : String(a) < String(b) ? -1 : 1;
}

// Put the rows in order. Only ROWS_AT_ONCE new rows are built now; the others follow in later frames.
function fill(shown, known) {
  const body = byId("peers-table").tBodies[0];
  let built = 0;
  let place = 0;
  for (const peer of shown) {
    if (!rows.has(peer.name)) {
      if (built === ROWS_AT_ONCE) continue;
      built += 1;
      rows.set(peer.name, makeRow(peer));
    }
    const row = rows.get(peer.name);
    if (body.children[place] !== row) body.insertBefore(row, body.children[place] ?? null);
    place += 1;
    change(row, peer, known);
  }
  if (built === ROWS_AT_ONCE && !scheduled) {
    scheduled = true;
    requestAnimationFrame(() => {
      scheduled = false;
      update();
    });
  }
}

function remove(name, row) {
  row.remove();
  rows.delete(name);
}

function headCell(column, index) {
  const cell = element("th", "", column.word ? "word" : "");
  cell.scope = "col";
  const button = element("button", column.name);
  button.type = "button";
  button.addEventListener("click", () => {
    sorted = { column: index, descending: sorted.column === index && !sorted.descending };
    update();
  });
  cell.append(button);
  return cell;
}

function makeRow(peer) {
  const row = element("tr");
  row.append(...COLUMNS.map((column) => element("td", "", column.word ? "word" : "")));
  const [name, chosen, state, reason] = row.cells;
  const code = element("code", shortName(peer.name));
  code.title = peer.name;
  name.append(code, copyButton(peer.id, `the id of ${shortName(peer.name)}`));
  state.append(element("span", "", "pill"));
  reason.classList.add("reason");
  chosen.classList.add("name");
  return row;
}

function change(row, peer, known) {
  COLUMNS.forEach((column, i) => {
    const cell = row.cells[i];
    if (cell.hidden === known[i]) cell.hidden = !known[i];
    if (i === 0 || !known[i]) return;
    const value = column.value(peer);
    if (i === STATE) setClass(cell.firstChild, `pill ${mood(value)}`);
    setText(i === STATE ? cell.firstChild : cell, column.text ? column.text(value) : value);
  });
}

byId("peers-filter").addEventListener("input", update);
