// Show the header: the state of the run and its main numbers.

import { byId, copyButton, element, setClass, setText, show } from "./dom.js";
import { age, amount, decimal, duration, integer, mood, percent } from "./format.js";

const of = (done, total) => (total === null ? done : `${done} of ${total}`);

const FACTS = [
  ["recipe", (run) => run.recipe || null],
  ["model", (run) => run.model || null],
  ["parameters", (run) => run.params && amount(run.params)],
  ["round", (run) => of(integer(run.round), run.rounds && integer(run.rounds))],
  ["inner step", (run) => run.step && of(integer(run.step), run.steps && integer(run.steps))],
  ["tokens", (run) => run.tokens && of(amount(run.tokens), run.tokens_total && amount(run.tokens_total))],
  ["time left", (run) => run.eta_s !== null && duration(run.eta_s)],
  ["time so far", (run) => run.elapsed_s !== null && duration(run.elapsed_s)],
  ["validation loss", (run) => run.val_loss !== null && `${decimal(run.val_loss)} nats per token`],
  ["training loss", (run) => run.loss !== null && `${decimal(run.loss)} nats per token`],
  ["bits per parameter and round", (run) => run.bits_per_param_per_round !== null && decimal(run.bits_per_param_per_round)],
  ["bits per parameter and step", (run) => run.bits_per_param_per_step !== null && decimal(run.bits_per_param_per_step, 5)],
  ["sent", (run) => amount(run.bytes_sent, "B")],
  ["speed", (run) => run.tokens_per_s && `${amount(run.tokens_per_s)} tokens/s`],
  ["time in inner steps", (run) => run.utilization !== null && percent(run.utilization)],
  ["peers alive", (run) => run.alive !== null && of(integer(run.alive), run.peers && integer(run.peers))],
];

let updated = null;

export function showRun(run) {
  setText(byId("name"), run.name);
  document.title = `${run.name}: ${run.state}`;
  setText(byId("state"), run.state);
  setClass(byId("state"), `pill ${mood(run.state)}`);
  setText(byId("reason"), [run.reason, run.cure].filter(Boolean).join(": "));
  updated = run.updated_s;
  showAge();
  showFacts(run);
  showLinks(run.links);
}

function showFacts(run) {
  const known = FACTS.map(([name, text]) => [name, text(run)]).filter(([, text]) => text);
  const list = byId("facts");
  if ([...list.querySelectorAll("dt")].map((node) => node.textContent).join() !== known.map(([name]) => name).join()) {
    list.replaceChildren(...known.map(([name]) => fact(name)));
  }
  const values = list.querySelectorAll("dd");
  known.forEach(([, text], i) => setText(values[i], text));
}

function fact(name) {
  const box = element("div");
  box.append(element("dt", name), element("dd"));
  return box;
}

function showLinks(links) {
  show("links", links.length > 0);
  const list = byId("links-list");
  const text = JSON.stringify(links);
  if (list.dataset.shown === text) return;
  list.dataset.shown = text;
  list.replaceChildren(
    ...links.map((link) => {
      const item = element("li");
      item.append(element("span", link.name), element("code", link.path), copyButton(link.path, link.name));
      return item;
    }),
  );
}

function showAge() {
  setText(byId("updated"), updated === null ? "" : `newest record ${age(Math.max(0, Date.now() / 1000 - updated))}`);
}

setInterval(showAge, 1000);

export function showProblem(problem) {
  setText(byId("problem"), problem);
  show("problem", problem !== "");
}
