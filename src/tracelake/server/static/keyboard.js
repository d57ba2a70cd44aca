// Keys on pages with a list: move, open, mark, search and help. Pages with a waterfall have their own keys.

const isWaterfall = Boolean(document.querySelector(".waterfall"));
const LINK = "td.name a, .hits .head > a, tbody td a";
const KEYS = [
  ["j", "k", "next, previous row"],
  ["Enter", "", "open"],
  ["g", "G", "first, last row"],
  ["x", "", "choose a trace to compare"],
  ["/", "", "filter or search"],
  ["Esc", "", "close or leave"],
];

function items() {
  return [...document.querySelectorAll("table.list:not([data-intervals]) tbody tr, .hits li")].filter((row) => row.querySelector(LINK));
}

function current(rows) {
  return rows.findIndex((row) => row.contains(document.activeElement));
}

function go(rows, place) {
  const row = rows[Math.min(Math.max(place, 0), rows.length - 1)];
  row?.querySelector(LINK).focus();
  row?.scrollIntoView({ block: "nearest" });
}

function helpDialog() {
  const dialog = document.createElement("dialog");
  dialog.className = "keys";
  dialog.setAttribute("aria-label", "Keyboard shortcuts");
  const add = (parent, tag, text = "") => parent.appendChild(Object.assign(document.createElement(tag), { textContent: text }));
  add(dialog, "h2", "Keyboard");
  const list = add(dialog, "dl");
  for (const [first, second, text] of KEYS) {
    const line = add(list, "div");
    const term = add(line, "dt");
    for (const key of [first, second].filter(Boolean)) {
      add(term, "kbd", key);
      term.append(" ");
    }
    add(line, "dd", text);
  }
  const form = add(dialog, "form");
  form.method = "dialog";
  add(form, "button", "Close");
  document.body.append(dialog);
  return dialog;
}

/** The open menus that cover the page. */
function popups() {
  return document.querySelectorAll(".menu[open], .popup[open]");
}

let help = null;
function showHelp() {
  help ??= document.querySelector("dialog.keys") ?? helpDialog();
  if (!help.open) help.showModal();
}

const actions = {
  j: (rows) => go(rows, current(rows) + 1),
  k: (rows) => go(rows, current(rows) - 1),
  g: (rows) => go(rows, 0),
  G: (rows) => go(rows, rows.length - 1),
  x: (rows) => rows[current(rows)]?.querySelector("input[name=trace]")?.click(),
  "/": () => (document.querySelector(".filters input[type=search]") ?? document.querySelector(".find input"))?.focus(),
  "?": showHelp,
  Escape: () => {
    for (const popup of popups()) popup.open = false;
    document.activeElement?.blur();
  },
};

function press(event) {
  if (event.defaultPrevented || event.ctrlKey || event.metaKey || event.altKey || document.querySelector("dialog[open]")) return;
  const isTyping = event.target.matches("input:not([type=checkbox], [type=radio]), select, textarea");
  const action = actions[event.key];
  if (!action || (isTyping && event.key !== "Escape")) return;
  if (event.key !== "Escape") event.preventDefault();
  action(items());
}

if (!isWaterfall) document.addEventListener("keydown", press);
const button = document.querySelector("[data-shortcuts]");
if (button) {
  button.parentElement.hidden = false;
  button.addEventListener("click", showHelp);
}
document.addEventListener("click", (event) => {
  for (const popup of popups()) if (!popup.contains(event.target)) popup.open = false;
});
