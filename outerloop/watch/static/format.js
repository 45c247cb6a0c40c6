// Turn numbers into text. A value may also be null (not known) or one of the texts "nan", "inf" and "-inf".

const DASH = "–";
const PREFIXES = [[1e12, "T"], [1e9, "G"], [1e6, "M"], [1e3, "k"]];

const isNumber = (value) => typeof value === "number";
const other = (value) => (value === null || value === undefined ? DASH : String(value));

export function decimal(value, digits = 3) {
  if (!isNumber(value)) return other(value);
  return Math.abs(value) < 1e6 ? value.toFixed(digits) : value.toExponential(digits);
}

export function integer(value) {
  return isNumber(value) ? Math.round(value).toLocaleString("en") : other(value);
}

// 1234567 -> "1.23 M"
export function amount(value, unit = "") {
  if (!isNumber(value)) return other(value);
  const [factor, prefix] = PREFIXES.find(([limit]) => Math.abs(value) >= limit) ?? [1, ""];
  return `${Number((value / factor).toPrecision(4))} ${prefix}${unit}`.trim();
}

// 3725 -> "1h02m"
export function duration(seconds) {
  if (!isNumber(seconds)) return other(seconds);
  if (seconds < 10) return `${seconds.toFixed(2)} s`;
  if (seconds < 60) return `${seconds.toFixed(1)} s`;
  const minutes = Math.floor(seconds / 60);
  if (minutes < 60) return `${minutes}m${String(Math.floor(seconds % 60)).padStart(2, "0")}s`;
  const hours = Math.floor(minutes / 60);
  return hours < 48 ? `${hours}h${String(minutes % 60).padStart(2, "0")}m` : `${Math.floor(hours / 24)}d${hours % 24}h`;
}

// 0.0123 -> "12.3 ms"
export function milliseconds(seconds) {
  return isNumber(seconds) ? `${Number((1000 * seconds).toPrecision(3))} ms` : other(seconds);
}

// 12.3 -> "12 s ago"
export function age(seconds) {
  if (!isNumber(seconds)) return other(seconds);
  return seconds < 60 ? `${Math.round(seconds)} s ago` : `${duration(seconds)} ago`;
}

export function percent(value) {
  return isNumber(value) ? `${(100 * value).toFixed(1)} %` : other(value);
}

// The worker index and the end of the peer id: all peer ids begin with the same letters.
export function shortName(name) {
  return name.length <= 16 ? name : `${name.slice(0, 3)}-…${name.slice(-8)}`;
}

// The end of a peer id.
export function shortId(peer) {
  return peer.length <= 8 ? peer : `…${peer.slice(-8)}`;
}

// Shorten every name of a peer in a sentence.
export function withShortNames(text) {
  return text.replace(/\b\d{3}-\w{20,128}/g, shortName);
}

const MOODS = {
  running: "good", training: "good", finished: "good", joined: "good", "caught up": "good", saved: "good",
  starting: "warn", waiting: "warn", "catching up": "warn", silent: "warn", failed: "warn", left: "warn",
  stopped: "warn", refused: "warn", accused: "warn", audited: "warn", died: "bad", killed: "bad", diverged: "bad", expelled: "bad",
};

export const mood = (state) => MOODS[state] ?? "";
