// Messages on a page: copying them, whole texts, downloads, and embedded images. Texts from senders are set only as text.

const fetched = new Map();

/** The response for a URL; an error with the server's reason if it refused. */
async function get(url) {
  const response = await fetch(url);
  if (response.ok) return response;
  const { error } = await response.json().catch(() => ({}));
  throw new Error(error ?? `The server answered with status ${response.status}.`);
}

/** The value at a path of a span's JSON, which is fetched once. A path may begin with the URL of the JSON and `#`. */
async function valueAt(button, path) {
  const [place, url] = path.split("#").reverse();
  const address = url ?? button.closest("[data-json]").dataset.json;
  if (!fetched.has(address)) fetched.set(address, await (await get(address)).json());
  return place.split(".").reduce((value, key) => value?.[key], fetched.get(address));
}

function textOf(value) {
  if (typeof value !== "string") return JSON.stringify(value, null, 2);
  if (value.length > 2_000_000 || !/^\s*[[{]/.test(value)) return value;
  try {
    return JSON.stringify(JSON.parse(value), null, 2);
  } catch {
    return value; // It only looked like JSON.
  }
}

async function showAll(button) {
  const whole = document.createElement("pre");
  whole.textContent = textOf(await valueAt(button, button.dataset.path));
  whole.tabIndex = 0;
  button.previousElementSibling.replaceWith(whole);
  button.remove();
}

/** The text of a message: its texts as they are, other parts as JSON. */
function messageText({ parts }) {
  return parts.map((part) => part.text ?? textOf(part.arguments ?? part.result ?? part.url ?? "")).join("\n\n");
}

async function copyText(button) {
  const { copyLink, copyUrl, copyCurl, copyPath } = button.dataset;
  if (copyLink) return location.origin + copyLink;
  if (copyCurl) return `curl -fsS '${location.origin}${copyCurl}'`;
  if (copyPath) return messageText(await valueAt(button, copyPath));
  return (await get(copyUrl)).text();
}

async function copy(button) {
  const text = await copyText(button);
  if (!navigator.clipboard) throw new Error("The browser copies only on pages that it reads over HTTPS.");
  await navigator.clipboard.writeText(text);
  button.dataset.label ??= button.textContent;
  button.textContent = "Copied";
  setTimeout(() => (button.textContent = button.dataset.label), 1500);
}

/** Save a response as a file. A browser that follows the link itself saves half a response, or the page of an error. */
async function download(link) {
  const address = URL.createObjectURL(await (await get(link.href)).blob());
  Object.assign(document.createElement("a"), { href: address, download: link.download }).click();
  setTimeout(() => URL.revokeObjectURL(address), 60_000);
}

function showImage(link) {
  const image = document.createElement("img");
  image.alt = "Image of the message";
  image.src = link.href;
  link.replaceWith(image);
}

const ACTIONS = { ".copy": copy, ".more": showAll, "a.embedded": showImage, "a[download]": download };

document.addEventListener("click", async (event) => {
  const button = event.target.closest(Object.keys(ACTIONS).join());
  if (!button || button.ariaBusy) return;
  event.preventDefault();
  document.getElementById("action-problem")?.remove();
  button.ariaBusy = "true";
  try {
    await ACTIONS[Object.keys(ACTIONS).find((selector) => button.matches(selector))](button);
  } catch (error) {
    const problem = document.createElement("p");
    Object.assign(problem, { id: "action-problem", className: "problem", role: "alert", textContent: error.message });
    (button.closest(".menu") ? button : (button.closest("header") ?? button)).after(problem);
  }
  button.ariaBusy = null;
});
