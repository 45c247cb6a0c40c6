// Receive the parts of the page that have changed, and pass each to the module that shows it.

import { showContributors, showCounted } from "./contributors.js";
import { showCurves } from "./curves.js";
import { show } from "./dom.js";
import { showEvents } from "./events.js";
import { showPeers } from "./peers.js";
import { showPhase } from "./phase.js";
import { showProblem, showRun } from "./run.js";
import { showSweep } from "./sweep.js";
import { nameRows, showTimeline } from "./timeline.js";

const VERSION = 1;
const VIEWS = {
  run: showRun,
  phase: showPhase,
  peers: (peers) => {
    showPeers(peers);
    nameRows(peers);
  },
  timeline: showTimeline,
  curves: showCurves,
  events: showEvents,
  contributors: showContributors,
  counted: showCounted,
  sweep: showSweep,
  problem: showProblem,
};

let pending = {};

// Show one part per frame, so that a page with many peers never blocks for long.
function showNext() {
  const [name] = Object.keys(pending);
  if (name === undefined) return;
  const part = pending[name];
  delete pending[name];
  VIEWS[name]?.(part);
  setTimeout(showNext);
}

function receive(event) {
  const parts = JSON.parse(event.data);
  if (parts.version !== undefined && parts.version !== VERSION) {
    location.reload(); // the server was replaced by another version
    return;
  }
  const idle = Object.keys(pending).length === 0;
  pending = { ...pending, ...parts };
  if (parts.kind) show("run", parts.kind !== "sweep");
  if (idle) setTimeout(showNext);
}

const stream = new EventSource("/events");
stream.addEventListener("message", receive);
stream.addEventListener("open", () => showProblem(""));
stream.addEventListener("error", () => showProblem(stream.readyState === EventSource.CLOSED
  ? "outerloop watch refuses the connection, for example because too many pages are open: reload this page later"
  : "no connection to outerloop watch: trying again"));
