// Selecting, folding, finding and details of the spans of one trace. The server renders the details with all text from
// senders escaped; this script sets such text only as text.

import "./messages.js";
import { openNeighbour } from "./neighbours.js";

const tree = document.querySelector(".waterfall");
const details = document.querySelector(".details");
const box = document.querySelector(".find-span");
const count = document.querySelector(".found-count");
const keys = document.querySelector(".keys");
const rows = [...tree.querySelectorAll(".row")];
const levelOf = (row) => Number(row.getAttribute("aria-level"));
let chosen = tree.querySelector('.row[aria-selected="true"]');
let asked = 0;
let found = [];

function element(tag, text, className) {
  const made = document.createElement(tag);
  if (text !== undefined) made.textContent = text;
  if (className) made.className = className;
  return made;
}

/**
 * The row of a span. Rows have a workspace if several have a span with this id; the default one comes first. Rows have a
 * kind if a client and a server span share the id; the client span comes first.
 */
function rowOf(span, workspace, kind) {
  const its = rows.filter((row) => row.dataset.span === span && (!kind || [kind, undefined].includes(row.dataset.kind)));
  const of = (name) => its.find((row) => [name, undefined].includes(row.dataset.workspace));
  return workspace ? of(workspace) : (of("default") ?? its[0]);
}

/** What names a row in an address. */
function addressOf({ span, workspace, kind }) {
  return `span=${encodeURIComponent(span)}${parameters({ workspace, kind })}`;
}

/** Parameters of an address that have a value. */
function parameters(values) {
  const given = Object.entries(values).filter(([, value]) => value);
  return given.map(([name, value]) => `&${name}=${encodeURIComponent(value)}`).join("");
}

/** Rows below this one in the tree: all that follow it and stand deeper. */
function below(row) {
  const start = rows.indexOf(row) + 1;
  const end = rows.findIndex((other, index) => index >= start && levelOf(other) <= levelOf(row));
  return rows.slice(start, end < 0 ? rows.length : end);
}

function fold(row, expanded) {
  if (!row.hasAttribute("aria-expanded")) return;
  row.setAttribute("aria-expanded", String(expanded));
  let foldedLevel = Infinity; // Rows deeper than this stay hidden: a parent among them is folded itself.
  for (const other of below(row)) {
    if (levelOf(other) <= foldedLevel) foldedLevel = Infinity;
    other.hidden = !expanded || levelOf(other) > foldedLevel;
    if (foldedLevel === Infinity && other.getAttribute("aria-expanded") === "false") foldedLevel = levelOf(other);
  }
}

function parentOf(row) {
  for (let index = rows.indexOf(row) - 1; index >= 0; index -= 1) {
    if (levelOf(rows[index]) < levelOf(row)) return rows[index];
  }
  return null;
}

function mark(row) {
  chosen?.setAttribute("aria-selected", "false");
  chosen = row;
  row.setAttribute("aria-selected", "true");
  for (let above = parentOf(row); row.hidden && above; above = parentOf(above)) fold(above, true);
  row.scrollIntoView({ block: "nearest" });
}

function select(row) {
  mark(row);
  details.classList.add("sheet");
  showDetails(row.dataset);
}

/** Choosing a span changes the address, so that the page can be shared; the address then selects the row. */
function choose(row) {
  if (row) history.replaceState(null, "", `#${addressOf(row.dataset)}`);
  if (row) select(row);
}

function selectFromAddress() {
  const read = (text) => {
    const named = new URLSearchParams(text);
    return { span: named.get("span"), workspace: named.get("workspace"), kind: named.get("kind") };
  };
  const { span, workspace, kind } = read(location.hash.slice(1));
  const query = read(location.search);
  if (!span) return;
  const row = rowOf(span, workspace, kind);
  const isShown = details.querySelector(".span")?.dataset.address === location.hash.slice(1);
  if (row && row === chosen && isShown) mark(row);
  else if (row) select(row);
  else if (query.span !== span || query.workspace !== workspace || query.kind !== kind)
    location.replace(`?${addressOf({ span, workspace, kind })}${location.hash}`);
  else details.replaceChildren(element("p", `This trace has no span ${span}${workspace ? ` of ${workspace}` : ""}.`, "hint"));
}

async function showDetails({ span, workspace, kind, previous, self, tree: below, cost }) {
  const ticket = ++asked;
  const url = `/traces/${tree.dataset.trace}/details?span=${encodeURIComponent(span)}`;
  let html;
  let problem;
  try {
    const response = await fetch(url + parameters({ workspace, kind, previous }));
    html = await response.text();
    if (!response.ok) problem = new DOMParser().parseFromString(html, "text/html").querySelector("main")?.textContent;
  } catch (error) {
    problem = `The details could not be fetched: ${error.message}. Select the span again.`;
  }
  if (ticket !== asked) return;
  if (problem) return details.replaceChildren(element("p", problem.trim(), "problem"));
  const isRaw = details.querySelector('[value="raw"]')?.checked;
  details.innerHTML = html; // The server escaped all that comes from senders.
  for (const [name, value] of Object.entries({ self, tree: below, cost })) {
    const fact = details.querySelector(`[data-fact="${name}"]`);
    fact.hidden = !value;
    fact.querySelector("dd").textContent = value ?? "";
  }
  if (isRaw) details.querySelector('[value="raw"]')?.click();
  details.scrollTop = 0;
}

document.addEventListener("click", (event) => {
  const button = event.target.closest("button, [data-span-link]");
  if (!button) return;
  if (button.matches(".close")) details.classList.remove("sheet");
  else if (button.matches(".help")) keys.showModal();
  else if (button.matches("[data-span-link]")) {
    const named = new URLSearchParams(button.hash.slice(1));
    const row = rowOf(named.get("span"), named.get("workspace"), named.get("kind"));
    if (!row) return; // It is on another page of the trace.
    event.preventDefault();
    choose(row);
  }
});

/** Hides the rows of other types, and marks those that have the text. */
function narrow() {
  const type = document.querySelector(".type-filter")?.value ?? "";
  const text = box.value.trim().toLowerCase();
  found = [];
  for (const row of rows) {
    row.classList.toggle("filtered", Boolean(type) && row.dataset.type !== type);
    const has = Boolean(text) && (row.querySelector(".label").textContent.toLowerCase().includes(text) || row.dataset.span === text);
    row.classList.toggle("found", has);
    if (has && !row.classList.contains("filtered")) found.push(row);
  }
  count.textContent = text ? `${found.length.toLocaleString("en")} found` : "";
}

function collapse(levels) {
  for (const row of [...rows].reverse()) fold(row, !levels || levelOf(row) < levels);
}

box.addEventListener("input", narrow);
document.querySelector(".type-filter")?.addEventListener("change", narrow);
document.querySelector(".depth")?.addEventListener("change", (event) => collapse(Number(event.target.value)));
document.querySelector(".tools").addEventListener("submit", (event) => {
  event.preventDefault();
  if (found.length) choose(found[(found.indexOf(chosen) + 1) % found.length]);
});

tree.addEventListener("click", (event) => {
  const row = event.target.closest(".row");
  if (!row) return;
  event.preventDefault();
  if (event.target.closest(".fold") && row.hasAttribute("aria-expanded")) {
    fold(row, row.getAttribute("aria-expanded") === "false");
  } else {
    choose(row);
    tree.focus({ preventScroll: true });
  }
});

/** Dragging on the minimap shows only a range of time; `from` and `to` are shares of the whole. */
function zoom(map, from, to) {
  const isWhole = from <= 0 && to >= 1;
  const length = Number(map.dataset.length);
  for (const svg of tree.querySelectorAll(".track svg")) svg.setAttribute("viewBox", `${1000 * from} 0 ${1000 * (to - from)} 10`);
  tree.querySelectorAll(".ticks span").forEach((tick, index, ticks) => {
    tick.dataset.whole ??= tick.textContent;
    tick.textContent = isWhole ? tick.dataset.whole : duration(length * (from + ((to - from) * index) / (ticks.length - 1)));
  });
  map.querySelector("figcaption").hidden = isWhole;
  map.querySelector("output").textContent = `${duration(length * from)} – ${duration(length * to)}`;
  for (const rect of map.querySelectorAll("rect")) rect.remove();
  if (isWhole) return;
  for (const [className, left, right] of [["outside", 0, from], ["outside", to, 1], ["window", from, to]]) {
    const rect = document.createElementNS("http://www.w3.org/2000/svg", "rect");
    for (const [name, value] of Object.entries({ class: className, x: 500 * left, width: 500 * (right - left), height: 40 })) {
      rect.setAttribute(name, value);
    }
    map.querySelector("svg").append(rect);
  }
}

/** A duration as the server writes it. */
function duration(ns) {
  for (const [limit, unit, size] of [[1e3, "ns", 1], [1e6, "µs", 1e3], [1e9, "ms", 1e6], [6e10, "s", 1e9]]) {
    if (ns < limit) return `${(ns / size).toFixed(unit === "ns" || ns / size >= 100 ? 0 : ns / size >= 10 ? 1 : 2)} ${unit}`;
  }
  const seconds = Math.floor(ns / 1e9);
  const pad = (number) => String(number).padStart(2, "0");
  return seconds < 3600 ? `${Math.floor(seconds / 60)} m ${pad(seconds % 60)} s` : `${Math.floor(seconds / 3600)} h ${pad(Math.floor(seconds / 60) % 60)} m`;
}

function addZoom(map) {
  const svg = map.querySelector("svg");
  let from = null;
  const at = (event) => {
    const area = svg.getBoundingClientRect();
    return Math.min(Math.max((event.clientX - area.left) / area.width, 0), 1);
  };
  const range = (event) => [Math.min(from, at(event)), Math.max(from, at(event))];
  svg.addEventListener("pointerdown", (event) => {
    if (event.button !== 0) return;
    from = at(event);
    svg.setPointerCapture(event.pointerId);
  });
  svg.addEventListener("pointermove", (event) => {
    if (from !== null && Math.abs(at(event) - from) > 0.005) zoom(map, ...range(event));
  });
  svg.addEventListener("pointerup", (event) => {
    // A click without a drag shows the tenth of the trace around it.
    if (from !== null && Math.abs(at(event) - from) <= 0.005) {
      const start = Math.min(Math.max(from - 0.05, 0), 0.9);
      zoom(map, start, start + 0.1);
    }
    from = null;
  });
  svg.addEventListener("pointercancel", () => (from = null));
  map.querySelector("button").addEventListener("click", () => zoom(map, 0, 1));
}

const minimap = document.querySelector(".minimap");
if (minimap) addZoom(minimap);

const isVisible = (row) => !row.hidden && !row.classList.contains("filtered");

function step(by) {
  const visible = rows.filter(isVisible);
  choose(visible[Math.max(visible.indexOf(chosen) + by, 0)]);
}

function escape() {
  for (const menu of document.querySelectorAll(".menu[open]")) menu.open = false;
  if (details.classList.contains("sheet") && getComputedStyle(details).position === "fixed") details.classList.remove("sheet");
  else if (box.value) {
    box.value = "";
    narrow();
  }
  tree.focus({ preventScroll: true });
}

const shortcuts = {
  j: () => step(1),
  k: () => step(-1),
  g: () => choose(rows.find(isVisible)),
  G: () => choose(rows.findLast(isVisible)),
  e: () => {
    const failed = rows.filter((row) => row.classList.contains("failed"));
    choose(failed.find((row) => rows.indexOf(row) > rows.indexOf(chosen)) ?? failed[0]);
  },
  "[": () => openNeighbour("previous"),
  "]": () => openNeighbour("next"),
  "/": () => box.focus(),
  "?": () => keys.showModal(),
  Escape: escape,
};
const inTree = {
  ArrowDown: shortcuts.j,
  ArrowUp: shortcuts.k,
  Home: shortcuts.g,
  End: shortcuts.G,
  ArrowRight: () => (chosen?.getAttribute("aria-expanded") === "false" ? fold(chosen, true) : step(1)),
  ArrowLeft: () => (chosen?.getAttribute("aria-expanded") === "true" ? fold(chosen, false) : choose(chosen && parentOf(chosen))),
};

document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey || keys.open) return;
  const isTyping = event.target.matches("input:not([type=checkbox], [type=radio]), select, textarea");
  if (isTyping && event.key !== "Escape") return;
  const action = shortcuts[event.key] ?? (event.target === tree ? inTree[event.key] : undefined);
  if (!action || (isTyping && event.target !== box)) return;
  event.preventDefault();
  action();
});

addEventListener("hashchange", selectFromAddress);
selectFromAddress();
tree.dataset.ready = "";
