// Show the stages of the round at hand, and what it waits for.

import { byId, element, setText, show } from "./dom.js";
import { duration, withShortNames } from "./format.js";

export function showPhase(phase) {
  show("phase", phase !== null);
  if (phase === null) return;
  setText(byId("phase-round"), String(phase.round));
  setText(byId("phase-text"), withShortNames(phase.text));
  const list = byId("stages");
  if (list.childElementCount !== phase.stages.length) {
    list.replaceChildren(...phase.stages.map(stageItem));
  }
  phase.stages.forEach((stage, i) => update(list.children[i], stage));
}

function stageItem(stage) {
  const item = element("li");
  item.append(element("span", stage.name), element("small"));
  return item;
}

function update(item, stage) {
  setText(item.lastChild, stage.seconds === null ? "" : `${duration(stage.seconds)} in the last round`);
  if (stage.active) item.setAttribute("aria-current", "step");
  else item.removeAttribute("aria-current");
}
