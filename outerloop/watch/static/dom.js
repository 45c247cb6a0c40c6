// Build and change elements. Every text goes through textContent, so that names of peers are never read as markup.

export const byId = (id) => document.getElementById(id);

export function element(tag, text = "", className = "") {
  const made = document.createElement(tag);
  if (text !== "") made.textContent = text;
  if (className) made.className = className;
  return made;
}

// Set a text only if it differs: reading is cheap, and an unchanged cell needs no new layout.
export function setText(node, text) {
  if (node.textContent !== text) node.textContent = text;
}

export function setClass(node, className) {
  if (node.className !== className) node.className = className;
}

export function show(id, visible) {
  byId(id).hidden = !visible;
}

// Return a button that copies a text. Browsers offer the clipboard to local and https pages alone; without it, the
// text is selected in a prompt instead.
export function copyButton(text, what) {
  const button = element("button", "copy");
  button.type = "button";
  button.setAttribute("aria-label", `copy ${what}`);
  button.addEventListener("click", async () => {
    if (navigator.clipboard) {
      await navigator.clipboard.writeText(text);
      setText(button, "copied");
      setTimeout(() => setText(button, "copy"), 1500);
    } else {
      window.prompt("Copy", text);
    }
  });
  return button;
}
