// Show the event log, newest first, with a filter by kind and text.

import { byId, element, show } from "./dom.js";
import { duration, mood, shortName, withShortNames } from "./format.js";

let entries = [];

export function showEvents(newest) {
  entries = newest;
  show("events", entries.length > 0);
  offerKinds();
  draw();
}

function offerKinds() {
  const select = byId("events-kind");
  const offered = new Set([...select.options].map((option) => option.value));
  for (const { kind } of entries) {
    if (!offered.has(kind)) {
      offered.add(kind);
      select.append(new Option(kind, kind));
    }
  }
}

function draw() {
  const kind = byId("events-kind").value;
  const text = byId("events-text").value.toLowerCase();
  const shown = entries.filter(
    (entry) => (!kind || entry.kind === kind) && `${entry.peer} ${entry.text}`.toLowerCase().includes(text),
  );
  byId("events-list").replaceChildren(...shown.reverse().map(item));
}

function item(entry) {
  const line = element("li");
  const peer = element("span", shortName(entry.peer));
  peer.title = entry.peer;
  line.append(
    element("span", duration(entry.time_s), "quiet"),
    element("span", entry.kind, mood(entry.kind)),
    peer,
    element("span", withShortNames(entry.text)),
  );
  return line;
}

byId("events-kind").addEventListener("change", draw);
byId("events-text").addEventListener("input", draw);
