// Show a sweep: the figure of final loss against bytes, and the tables of `outerloop report`.

import { byId, element, show } from "./dom.js";
import { Figure } from "./figure.js";

const LOG_FROM = 10;
const FRONT = "Pareto front";

let figure = null;

export function showSweep(sweep) {
  show("sweep", sweep !== null);
  if (sweep === null) return;
  showPareto(sweep.pareto.filter(({ bytes, loss }) => typeof bytes === "number" && typeof loss === "number"));
  byId("tables").replaceChildren(...sweep.tables.filter((table) => table.rows.length).flatMap(tableOf));
  byId("notes").replaceChildren(...sweep.notes.map((note) => element("li", note)));
}

// One series per group with a single point, and one for the front.
function showPareto(points) {
  show("pareto", points.length > 0);
  if (!points.length) return;
  figure ??= new Figure(byId("pareto"), "Final validation loss [nats per token] against payload bytes sent by a worker");
  const front = points.filter((point) => point.front).sort((a, b) => a.bytes - b.bytes);
  const groups = points.map((point) => [[point.bytes], [point.loss]]);
  const all = [...groups, [front.map((point) => point.bytes), front.map((point) => point.loss)]];
  const bytes = points.map((point) => point.bytes);
  const log = Math.min(...bytes) > 0 && Math.max(...bytes) >= LOG_FROM * Math.min(...bytes);
  const names = [...points.map((point) => `${point.label} (n=${point.runs})`), FRONT];
  figure.show(uPlot.join(all), { names, xlabel: "bytes", log, points: true, lineOf: points.length });
}

function tableOf({ title, columns, rows, words }) {
  const table = element("table");
  const head = table.createTHead().insertRow();
  columns.forEach((name, i) => {
    const cell = element("th", name, i < words ? "word" : "");
    cell.scope = "col";
    head.append(cell);
  });
  const body = table.createTBody();
  for (const row of rows) body.append(rowOf(row, words));
  const scroll = element("div", "", "scroll");
  scroll.tabIndex = 0;
  scroll.append(table);
  return [element("h2", title), scroll];
}

function rowOf(cells, words) {
  const row = element("tr");
  row.append(...cells.map((cell, i) => element("td", cell, i < words ? "word" : "")));
  return row;
}
