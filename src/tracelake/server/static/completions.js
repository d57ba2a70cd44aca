// What may follow in a search that is being typed, offered by the browser below each field of a search.

const WAIT_MS = 150;

for (const [number, field] of document.querySelectorAll("input[name=q]").entries()) {
  const list = document.createElement("datalist");
  list.id = `completions-${number}`;
  field.after(list);
  field.setAttribute("list", list.id);
  field.autocomplete = "off";
  let waiting = 0;
  let asked = 0;
  field.addEventListener("input", () => {
    clearTimeout(waiting);
    waiting = setTimeout(async () => {
      const ticket = ++asked;
      const found = await completionsOf(field.value);
      if (ticket === asked) list.replaceChildren(...found.map((text) => new Option(text, text)));
    }, WAIT_MS);
  });
}

async function completionsOf(typed) {
  if (!typed.trim()) return [];
  try {
    const response = await fetch(`/api/v1/search/completions?q=${encodeURIComponent(typed)}`);
    return response.ok ? (await response.json()).completions : [];
  } catch {
    return []; // A search works without.
  }
}
