// Show what each peer has contributed over the whole run: samples, their share, and the rounds that counted it.

import { byId, element, setText, show } from "./dom.js";
import { integer, percent, shortId } from "./format.js";

const MOST = 100;
const COLUMNS = [
  { name: "name", word: true, text: ({ name }) => name },
  { name: "peer", word: true, text: ({ peer }) => (peer ? shortId(peer) : "all others") },
  { name: "samples", text: ({ samples }) => integer(samples) },
  { name: "share", text: ({ samples }, total) => (total ? percent(samples / total) : "") },
  { name: "rounds", text: ({ rounds }) => integer(rounds) },
  { name: "first round", text: ({ first_round }) => integer(first_round) },
  { name: "last round", text: ({ last_round }) => integer(last_round) },
  { name: "online", word: true, text: ({ online }) => (online === null ? "–" : online ? "yes" : "no") },
];

let contributors = [];
let counted = null;

export function showContributors(newest) {
  contributors = newest;
  draw();
}

export function showCounted(newest) {
  counted = newest;
  draw();
}

function draw() {
  show("contributors", contributors.length > 0 && counted !== null);
  if (counted === null) return;
  setText(byId("contributors-text"), counted.text);
  const table = byId("contributors-table");
  if (!table.tHead.rows[0].childElementCount) table.tHead.rows[0].append(...COLUMNS.map(headCell));
  const shown = contributors.slice(0, MOST);
  table.tBodies[0].replaceChildren(...shown.map(rowOf));
  const more = counted.peers - shown.length;
  setText(byId("contributors-more"), more > 0 ? `and ${integer(more)} more` : "");
}

function headCell({ name, word }) {
  const cell = element("th", name, word ? "word" : "");
  cell.scope = "col";
  return cell;
}

function rowOf(entry) {
  const row = element("tr");
  row.append(...COLUMNS.map(({ name, word, text }) => {
    const cell = element("td", text(entry, counted.samples), word ? "word" : "");
    if (name === "name") cell.classList.add("name");
    if (name === "peer") cell.title = entry.peer;
    return cell;
  }));
  return row;
}
