// What may follow in a search that is being typed, offered in a list below the field. A search works without.

const WAIT_MS = 120;

for (const [number, field] of document.querySelectorAll("input[name=q]").entries()) offerBelow(field, number);

function offerBelow(field, number) {
  const list = document.createElement("ul");
  list.id = `completions-${number}`;
  list.className = "completions";
  list.role = "listbox";
  list.ariaLabel = "What may follow";
  list.hidden = true;
  field.after(list);
  field.role = "combobox";
  field.ariaAutoComplete = "list";
  field.ariaExpanded = "false";
  field.setAttribute("aria-controls", list.id);
  let waiting = 0;
  let asked = 0;
  let chosen = -1;

  const close = () => {
    clearTimeout(waiting);
    asked++; // What is on its way comes too late.
    list.hidden = true;
    field.ariaExpanded = "false";
    field.removeAttribute("aria-activedescendant");
    chosen = -1;
  };
  const choose = (next) => {
    chosen = next;
    for (const [at, item] of [...list.children].entries()) item.ariaSelected = String(at === chosen);
    if (chosen < 0) return field.removeAttribute("aria-activedescendant");
    field.setAttribute("aria-activedescendant", list.children[chosen].id);
    list.children[chosen].scrollIntoView({ block: "nearest" });
  };
  const take = (item) => {
    // Only what is before the cursor was asked about; what follows it stays.
    const rest = field.value.slice(field.selectionStart);
    field.value = item.dataset.query + rest;
    field.setSelectionRange(item.dataset.query.length, item.dataset.query.length);
    field.focus();
    close();
    if (/[:>]$/.test(item.dataset.query)) ask();
  };
  const ask = async () => {
    const ticket = ++asked;
    const typed = field.value.slice(0, field.selectionStart);
    const found = (await completionsOf(typed)).filter((query) => query !== typed);
    if (ticket !== asked || document.activeElement !== field) return;
    list.replaceChildren(...found.map((query, at) => itemOf(query, typed, `${list.id}-${at}`)));
    list.hidden = !found.length;
    field.ariaExpanded = String(!list.hidden);
    choose(-1);
  };

  field.addEventListener("input", () => {
    clearTimeout(waiting);
    waiting = setTimeout(ask, WAIT_MS);
  });
  field.addEventListener("keydown", (event) => {
    if (list.hidden || event.isComposing) return;
    const count = list.children.length;
    if (event.key === "ArrowDown") choose((chosen + 2) % (count + 1) - 1);
    else if (event.key === "ArrowUp") choose((chosen + 1 + count) % (count + 1) - 1);
    else if (event.key === "Escape") close();
    else if (event.key === "Enter" && chosen >= 0) take(list.children[chosen]);
    else if (event.key === "Tab" && !event.shiftKey) take(list.children[Math.max(chosen, 0)]);
    else return;
    event.preventDefault();
  });
  field.addEventListener("blur", close);
  // A press would take the focus, and the list away, before the click.
  list.addEventListener("mousedown", (event) => event.preventDefault());
  list.addEventListener("click", (event) => {
    const item = event.target.closest("li");
    if (item) take(item);
  });
}

function itemOf(query, typed, id) {
  const item = document.createElement("li");
  const start = typed.search(/\S*$/);
  const known = document.createElement("b");
  known.textContent = query.startsWith(typed) ? typed.slice(start) : "";
  item.append(known, query.slice(start + known.textContent.length));
  item.id = id;
  item.role = "option";
  item.dataset.query = query;
  return item;
}

async function completionsOf(typed) {
  if (!typed.trim()) return [];
  try {
    const response = await fetch(`/api/v1/search/completions?q=${encodeURIComponent(typed)}`);
    return response.ok ? (await response.json()).completions : [];
  } catch {
    return [];
  }
}
