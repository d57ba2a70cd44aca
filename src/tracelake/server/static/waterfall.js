// Selecting, folding and details of the spans of one trace. Whatever comes from a span is set as text, never as HTML.

const TEXT_SHOWN_MAX = 20_000;

const tree = document.querySelector(".waterfall");
const details = document.querySelector(".details");
const rows = [...tree.querySelectorAll(".row")];
const levelOf = (row) => Number(row.getAttribute("aria-level"));
let chosen = null;
let asked = 0;

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

function select(row) {
  chosen?.setAttribute("aria-selected", "false");
  chosen = row;
  row.setAttribute("aria-selected", "true");
  for (let above = parentOf(row); row.hidden && above; above = parentOf(above)) fold(above, true);
  row.scrollIntoView({ block: "nearest" });
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
  if (row) select(row);
  else if (query.span !== span || query.workspace !== workspace || query.kind !== kind)
    location.replace(`?${addressOf({ span, workspace, kind })}${location.hash}`);
  else details.replaceChildren(element("p", `This trace has no span ${span}${workspace ? ` of ${workspace}` : ""}.`, "hint"));
}

async function showDetails({ span, workspace, kind }) {
  const ticket = ++asked;
  const of = parameters({ workspace, kind }).replace("&", "?");
  const url = `/api/v1/traces/${tree.dataset.trace}/spans/${encodeURIComponent(span)}${of}`;
  let content;
  try {
    const response = await fetch(url);
    const found = await response.json();
    content = response.ok ? render(found, url) : [element("p", found.error, "problem")];
  } catch (error) {
    content = [element("p", `The details could not be fetched: ${error.message}. Select the span again.`, "problem")];
  }
  if (ticket === asked) details.replaceChildren(...content);
}

function milliseconds(nanoseconds) {
  return `${(nanoseconds / 1e6).toLocaleString("en", { maximumFractionDigits: 3 })} ms`;
}

function pretty(text) {
  if (text.length > 2_000_000 || !/^\s*[[{]/.test(text)) return text;
  try {
    return JSON.stringify(JSON.parse(text), null, 2);
  } catch {
    return text; // It only looked like JSON.
  }
}

/** A text, cut where it is very long, with a button that shows the rest. */
function longText(tag, text) {
  if (text.length <= TEXT_SHOWN_MAX) return [element(tag, text)];
  const shown = element(tag, `${text.slice(0, TEXT_SHOWN_MAX)}…`);
  const button = element("button", `Show all ${text.length.toLocaleString("en")} characters`);
  button.addEventListener("click", () => {
    shown.textContent = text;
    button.remove();
  });
  return [shown, button];
}

function textBlock(title, text) {
  return text === null ? [] : [element("h3", title), ...longText("pre", pretty(text))];
}

function table(title, values) {
  const entries = Object.entries(values ?? {}).filter(([, value]) => value !== null && value !== undefined);
  if (!entries.length) return [];
  const made = element("table");
  for (const [key, value] of entries) {
    const row = made.insertRow();
    const cell = element("td");
    cell.append(...longText("span", String(value)));
    row.append(element("th", key), cell);
  }
  return title ? [element("h3", title), made] : [made];
}

function render(span, url) {
  const link = element("a", "JSON", "meta");
  link.href = url;
  const heading = element("h2", span.name || "(no name)");
  heading.append(link);
  const events = (span.events ?? []).flatMap((event) => [
    element("h3", `Event ${event.name}, ${milliseconds(event.time_ns - span.start_ns)} after the start`),
    ...table(null, event.attributes),
  ]);
  const links = (span.links ?? []).flatMap((other, index) =>
    table(`Link ${index + 1}`, { trace: other.trace_id, span: other.span_id, ...other.attributes }),
  );
  const facts = {
    service: span.service,
    kind: span.kind,
    status: [span.status, span.status_message].filter(Boolean).join(": ") || null,
    duration: span.end_ns ? milliseconds(span.duration_ns) : "running",
    model: span.model,
    "input tokens": span.input_tokens,
    "output tokens": span.output_tokens,
    session: span.session_id,
    user: span.user_id,
    "span id": span.span_id,
    "parent span": span.parent_span_id,
  };
  return [
    heading,
    ...table(null, facts),
    ...textBlock("Input", span.input),
    ...textBlock("Output", span.output),
    ...events,
    ...table("Attributes", span.attributes),
    ...links,
    ...table("Resource", span.resource),
    ...table("Scope", { name: span.scope?.name, version: span.scope?.version, ...span.scope?.attributes }),
  ];
}

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

tree.addEventListener("keydown", (event) => {
  const visible = rows.filter((row) => !row.hidden);
  const at = visible.indexOf(chosen);
  const expanded = chosen?.getAttribute("aria-expanded");
  const actions = {
    ArrowDown: () => choose(visible[at + 1]),
    ArrowUp: () => choose(visible[at < 0 ? 0 : at - 1]),
    Home: () => choose(visible[0]),
    End: () => choose(visible.at(-1)),
    ArrowRight: () => (expanded === "false" ? fold(chosen, true) : choose(visible[at + 1])),
    ArrowLeft: () => (expanded === "true" ? fold(chosen, false) : choose(chosen && parentOf(chosen))),
  };
  if (!actions[event.key] || event.ctrlKey || event.metaKey || event.altKey) return;
  event.preventDefault();
  actions[event.key]();
});

addEventListener("hashchange", selectFromAddress);
selectFromAddress();
tree.dataset.ready = "";
