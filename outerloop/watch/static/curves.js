// Show the curves of a run, one figure per chart, against an axis of choice.

import { byId, element, show } from "./dom.js";
import { Figure } from "./figure.js";

const AXES = { step: "inner steps", round: "rounds", tokens: "tokens", bytes: "bytes sent by a worker", time_s: "seconds" };
const TITLES = { loss: "Loss [nats per token]", utilization: "Share of time in inner steps", peers: "Peers in the round",
  spread: "Spread of replicas (rms)", H: "H: inner steps per round", k: "k: values kept per chunk", agreement: "Agreement of the payloads",
  "peers seen": "Peers present" };

const figures = new Map(); // chart -> Figure
let curves = [];
let chosen = "step";

export function showCurves(newest) {
  curves = newest;
  show("curves", curves.length > 0);
  const possible = Object.keys(AXES).filter((axis) => curves.some((curve) => curve[axis].some((x) => x !== null)));
  if (!possible.includes(chosen)) chosen = possible[0] ?? "step";
  showAxes(possible);
  draw();
}

function draw() {
  const charts = [...new Set(curves.map((curve) => curve.chart))];
  for (const [chart, figure] of figures) {
    if (!charts.includes(chart)) {
      figure.remove();
      figures.delete(chart);
    }
  }
  for (const chart of charts) {
    if (!figures.has(chart)) figures.set(chart, new Figure(byId("figures"), TITLES[chart] ?? chart));
    const own = curves.filter((curve) => curve.chart === chart);
    const columns = uPlot.join(own.map((curve) => columnsOf(curve)));
    figures.get(chart).show(columns, { names: own.map((curve) => curve.name), xlabel: AXES[chosen] });
  }
}

// Return [xs, ys] in ascending order of x, without points that the axis or the scale cannot show.
function columnsOf(curve) {
  const points = curve[chosen].map((x, i) => [x, curve.y[i]]).filter(([x, y]) => typeof x === "number" && typeof y === "number");
  points.sort((a, b) => a[0] - b[0]);
  const last = new Map(points); // several points with one x: the newest counts
  return [[...last.keys()], [...last.values()]];
}

function showAxes(possible) {
  const box = byId("axes");
  if (box.dataset.shown === possible.join()) return;
  box.dataset.shown = possible.join();
  box.replaceChildren(element("legend", "against"), ...possible.map(axisChoice));
}

function axisChoice(axis) {
  const label = element("label");
  const button = element("input");
  Object.assign(button, { type: "radio", name: "axis", value: axis, checked: axis === chosen });
  button.addEventListener("change", () => {
    chosen = axis;
    draw();
  });
  label.append(button, ` ${AXES[axis]}`);
  return label;
}
