// Messages on a page: copying them, whole texts, and embedded images. Texts from senders are set only as text.

const fetched = new Map();

/** The response for a URL; an error if the server refused it. */
async function get(url) {
  const response = await fetch(url);
  if (!response.ok) throw new Error(`The server answered with status ${response.status}.`);
  return response;
}

/** The value at a path of a span's JSON, which is fetched once. A path may begin with the URL of the JSON and `#`. */
async function valueAt(button, path) {
  const [place, url] = path.split("#").reverse();
  const address = url ?? button.closest("[data-json]").dataset.json;
  if (!fetched.has(address)) fetched.set(address, get(address).then((response) => response.json()));
  return place.split(".").reduce((value, key) => value?.[key], await fetched.get(address));
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
  const label = button.textContent;
  try {
    await navigator.clipboard.writeText(await copyText(button));
    button.textContent = "Copied";
  } catch (error) {
    button.textContent = "Not copied";
    button.title = error.message;
  }
  setTimeout(() => (button.textContent = label), 1500);
}

function showImage(link) {
  const image = document.createElement("img");
  image.alt = "Image of the message";
  image.src = link.href;
  link.replaceWith(image);
}

document.addEventListener("click", (event) => {
  const button = event.target.closest(".copy, .more, a.embedded");
  if (!button) return;
  if (button.matches(".copy")) copy(button);
  else if (button.matches(".more")) showAll(button);
  else {
    event.preventDefault();
    showImage(button);
  }
});
