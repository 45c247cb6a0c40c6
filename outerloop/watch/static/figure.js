// One figure: a plot with a legend of our own, in which every name is plain text.

import { element, setText } from "./dom.js";
import { amount } from "./format.js";

const COLOURS = ["#2f6fde", "#e07b00", "#1a9c5b", "#b1459b", "#c23b3b", "#0f8f9c", "#8a6d00", "#6b59d3", "#60707f", "#a05a2c"];
const HEIGHT = 240;

export const colour = (index) => COLOURS[index % COLOURS.length];

export class Figure {
  constructor(parent, title) {
    this.box = element("figure");
    this.caption = element("figcaption");
    this.title = element("b", title);
    this.caption.append(this.title);
    this.place = element("div");
    this.box.append(this.caption, this.place);
    parent.append(this.box);
    this.plot = null;
    this.form = "";
    this.again = () => {};
    new ResizeObserver(() => this.resize()).observe(this.place);
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => this.rebuild());
  }

  // Show columns [x, y1, y2, ...]. The plot is built again only if its form (names, axis, scale) has changed.
  show(columns, { names, xlabel, log = false, points = false, lineOf = null }) {
    const form = JSON.stringify([names, xlabel, log, points]);
    this.again = () => this.build(columns, { names, xlabel, log, points, lineOf });
    if (form !== this.form) {
      this.form = form;
      this.legend(names);
      this.rebuild();
    } else {
      this.plot.setData(columns);
    }
    this.box.setAttribute("aria-label", `${this.title.textContent} against ${xlabel}`);
  }

  rebuild() {
    this.plot?.destroy();
    this.again();
  }

  build(columns, { names, xlabel, log, points, lineOf }) {
    const style = getComputedStyle(document.documentElement);
    const read = (name) => style.getPropertyValue(name).trim();
    const axis = { stroke: read("--quiet"), grid: { stroke: read("--grid"), width: 1 }, ticks: { stroke: read("--grid"), width: 1 } };
    const values = (_, ticks) => ticks.map((tick) => (tick === null ? "" : amount(tick)));
    const series = names.map((_, i) => ({
      stroke: colour(i),
      width: points && i !== lineOf ? 0 : 1.6,
      paths: i === lineOf ? uPlot.paths.stepped({ align: 1 }) : undefined,
      spanGaps: true,
      points: points && i !== lineOf ? { show: true, size: 10, fill: colour(i) } : { show: undefined },
    }));
    const options = {
      width: this.place.clientWidth || 400,
      height: HEIGHT,
      legend: { show: false },
      cursor: { drag: { setScale: true }, points: { size: 7 } },
      scales: { x: { time: false, distr: log ? 3 : 1 } },
      axes: [{ ...axis, values, size: 34 }, { ...axis, values, size: 56 }],
      series: [{}, ...series],
      hooks: { setCursor: [(plot) => this.readout(plot, names, xlabel)] },
    };
    this.plot = new uPlot(options, columns, this.place);
  }

  legend(names) {
    const entries = names.map((name, i) => {
      const entry = element("span");
      const key = element("span", "", "key");
      key.style.background = colour(i);
      entry.append(key, element("span", name), element("span"));
      return entry;
    });
    this.caption.replaceChildren(this.title, ...entries);
  }

  // Write the values under the cursor, or nothing, behind the names of the curves.
  readout(plot, names, xlabel) {
    const index = plot.cursor.idx;
    names.forEach((_, i) => {
      const value = index === null || index === undefined ? null : plot.data[i + 1][index];
      const text = value === null || value === undefined ? "" : ` ${amount(value)} at ${amount(plot.data[0][index])} ${xlabel}`;
      setText(this.caption.children[i + 1].lastChild, text);
    });
  }

  resize() {
    const width = this.place.clientWidth;
    if (this.plot && width && Math.abs(width - this.plot.width) > 1) this.plot.setSize({ width, height: HEIGHT });
  }

  remove() {
    this.plot?.destroy();
    this.box.remove();
  }
}
