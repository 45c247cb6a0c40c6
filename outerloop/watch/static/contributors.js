// Show which peers have trained on how many samples.

import { byId, element, show } from "./dom.js";
import { integer, shortName } from "./format.js";

const MOST = 100;

export function showContributors(contributors) {
  show("contributors", contributors.length > 0);
  const items = contributors.slice(0, MOST).map(({ peer, samples }, i) => {
    const line = element("li");
    const name = element("span", `${i + 1}. ${shortName(peer)}`);
    name.title = peer;
    line.append(name, element("span", `${integer(samples)} samples`));
    return line;
  });
  if (contributors.length > MOST) items.push(element("li", `and ${contributors.length - MOST} more`));
  byId("contributors-list").replaceChildren(...items);
}
