// Which page is shown, by the address's fragment: #play, #journey/<request id>, #cluster, #load.
import { getJson, setKey } from "./api.js";
import { cluster } from "./cluster.js";
import { every } from "./dom.js";
import { journey } from "./journey.js";
import { load } from "./load.js";
import { play } from "./play.js";

const pages = { play, journey, cluster, load };
const titles = { play: "Play", journey: "Journey", cluster: "Cluster", load: "Load" };
const main = document.getElementById("main");
let leave = () => {};

function show() {
  const [name, ...rest] = location.hash.slice(1).split("/");
  const page = pages[name] ? name : "play";
  leave();
  main.replaceChildren();
  main.className = page;
  document.title = titles[page] + " – Baton";
  for (const link of document.querySelectorAll("nav a")) {
    const here = link.getAttribute("href") === "#" + page;
    if (here) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
  leave = pages[page](main, rest.map(decodeURIComponent).join("/")) ?? (() => {});
}

document.getElementById("skip").addEventListener("click", (event) => {
  event.preventDefault();  // the fragment is the page's name
  main.focus();
});
window.addEventListener("hashchange", show);
show();

const keyForm = document.getElementById("key");
const keyText = document.getElementById("key-text");
window.addEventListener("key-needed", () => (keyForm.hidden = false));
keyForm.addEventListener("submit", (event) => {
  event.preventDefault();
  setKey(keyText.value.trim());
  keyText.value = "";
  keyForm.hidden = true;
  show();
});

const where = document.getElementById("where");
every(3000, async () => {
  let text;
  let ok = false;
  try {
    const { status } = await getJson("/baton/cluster");
    const ready = (role) => status.workers.filter((w) => w.info.role === role && w.state === "ready").length;
    text = `${status.model_name} · ${ready("prefill")} prefill, ${ready("decode")} decode ready`;
    ok = ready("decode") > 0;
  } catch (error) {
    ok = error.status === 403;  // a tenant's key: the cluster is not for it
    text = ok ? "" : keyForm.hidden ? "the router does not answer" : "an API key is needed";
  }
  if (where.textContent !== text) where.textContent = text;  // a screen reader hears changes only
  where.className = ok ? "ok" : "bad";
});
