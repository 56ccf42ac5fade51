// Cluster: both pools, what each worker does, and who owns its KV blocks. Again every second.
import { getJson, postJson } from "./api.js";
import { bytes, count, every, h, ms, svg } from "./dom.js";

const POOLS = [
  { role: "prefill", title: "Prefill pool", about: " reads whole prompts, bound by compute" },
  { role: "decode", title: "Decode pool", about: " one token a step, bound by memory bandwidth" },
];
const LEDGER = ["active", "leased", "cached", "quarantined", "free"];

// The blocks of a pool by state, to scale.
function ledgerBar(ledger) {
  const total = Math.max(1, Number(ledger.total));
  let at = 0;
  const parts = LEDGER.map((state) => {
    const width = 100 * Number(ledger[state]) / total;
    const part = svg("rect", { class: "kv-" + state, x: at + "%", width: width + "%", height: "16" });
    at += width;
    return part;
  });
  const words = LEDGER.map((state) => `${state} ${count(ledger[state])}`).join(", ");
  return svg("svg", { class: "ledger", width: "100%", height: "16", role: "img", "aria-label": words }, parts);
}

// "12 s", "3 min 20 s", "2 h 5 min".
function duration(s) {
  const [h1, m, rest] = [Math.floor(s / 3600), Math.floor(s / 60) % 60, Math.floor(s) % 60];
  return h1 > 0 ? `${h1} h ${m} min` : m > 0 ? `${m} min ${rest} s` : `${rest} s`;
}

function figure(name, value, title) {
  return h("div", { class: "figure", title }, h("dt", {}, name), h("dd", {}, value));
}

const speed = (gigabytes) => (gigabytes > 0 ? gigabytes.toFixed(2) + " GB/s" : "–");

function linkRows(worker) {
  const links = worker.load?.links ?? [];
  if (links.length === 0) return null;
  return h("table", { class: "links" }, h("caption", {}, "KV links from prefill"),
    h("thead", {}, h("tr", {}, ["worker", "state", "transport", "speed"].map((t) => h("th", { scope: "col" }, t)))),
    h("tbody", {}, links.map((link) => h("tr", { title: link.error || null },
      h("th", { scope: "row" }, link.worker), h("td", {}, link.state || "–"),
      h("td", {}, [link.transport, link.detail].filter(Boolean).join(" ") || "–"),
      h("td", { class: "number" }, speed(link.gigabytes_per_second))))));
}

// `buttons`: of an administrator, or null.
function workerCard(worker, buttons) {
  const load = worker.load ?? {};
  const ledger = load.ledger ?? Object.fromEntries([...LEDGER, "total", "block_bytes"].map((s) => [s, 0]));
  const decode = worker.info.role === "decode";
  const sum = LEDGER.reduce((total, state) => total + Number(ledger[state]), 0);
  return h("article", { class: "card worker " + worker.info.role, "aria-label": worker.info.name },
    h("div", { class: "head" }, h("h3", {}, worker.info.name),
      h("span", { class: "badge " + worker.state }, worker.state),
      buttons?.map(({ label, does }) => h("button", { type: "button", disabled: worker.state !== "ready",
        "aria-label": `${label(worker.info)} ${worker.info.name}`, onclick: () => does(worker.info) }, label(worker.info)))),
    h("dl", { class: "figures" },
      figure("running", count(load.running ?? 0), "sequences in the batch"),
      figure("waiting", count(load.waiting ?? 0), "requests that are not admitted yet"),
      figure("in flight", count(worker.in_flight), "requests that the router has here"),
      figure("tokens/s", count(load.tokens_per_second ?? 0), "sampled in the last second"),
      decode ? figure("context", count(load.context_tokens ?? 0), "positions that running sequences hold")
        : figure("tickets", count(load.tickets ?? 0), "KV exports that wait to be fetched")),
    h("div", { class: "kv" },
      h("p", {}, h("strong", {}, "KV"), ` ${count(ledger.total)} blocks of ${bytes(Number(ledger.block_bytes))}`,
        sum === Number(ledger.total) ? null : h("span", { class: "bad" }, " – do not add up")),
      ledgerBar(ledger),
      h("ul", { class: "ledger-legend" }, LEDGER.map((state) =>
        h("li", {}, h("span", { class: "swatch kv-" + state }), `${state} `, h("b", {}, count(ledger[state])))))),
    linkRows(worker),
    h("p", { class: "muted small" }, `${worker.info.backend} · ${worker.info.address}`));
}

function poolSection({ role, title, about }, workers, buttons) {
  return h("section", { class: "pool", "aria-labelledby": "pool-" + role },
    h("h2", { id: "pool-" + role }, title, h("span", { class: "muted" }, about)),
    workers.length > 0 ? null : h("p", { class: "muted" }, "No workers. They register by themselves when they run."),
    workers.map((w) => workerCard(w, buttons)));
}

export function cluster(root) {
  const pools = h("div", { class: "pools" });
  const summary = h("dl", { class: "figures wide" });
  const refused = h("div", {});
  const notice = h("p", { class: "notice", role: "status", hidden: true });
  const scaling = h("form", { class: "card scale", hidden: true });
  root.append(h("h1", {}, "Cluster"), notice, summary, scaling, pools, refused);

  const tell = (text, bad) => {
    notice.hidden = text === "";
    notice.textContent = text;
    notice.classList.toggle("bad", bad === true);
  };
  async function administer(path, body, done) {
    try {
      await postJson(path, body);
      tell(done);
    } catch (error) {
      tell(error.message, true);
    }
  }
  const other = (role) => (role === "prefill" ? "decode" : "prefill");
  const buttons = [
    { label: ({ role }) => "To " + other(role),
      does: ({ name, role }) => administer("/baton/role", { worker: name, role: other(role) },
        `${name} finishes what it has and joins the ${other(role)} pool, with the weights that it holds.`) },
    { label: () => "Drain", does: ({ name }) => administer("/baton/drain", { worker: name },
      `${name} drains: it takes nothing new, finishes what it has, and leaves.`) },
  ];

  const size = (role) => h("input", { id: "scale-" + role, type: "number", min: 1, max: 64, value: 1 });
  const prefill = size("prefill"), decode = size("decode");
  scaling.append(h("label", { for: "scale-prefill" }, "Prefill workers"), prefill,
    h("label", { for: "scale-decode" }, "Decode workers"), decode, h("button", { type: "submit" }, "Scale"));
  scaling.addEventListener("submit", (event) => {
    event.preventDefault();
    administer("/baton/scale", { prefill: Number(prefill.value), decode: Number(decode.value) },
      `Asked for ${prefill.value} prefill and ${decode.value} decode workers.`);
  });

  let last = "";
  let sized = false;
  const stop = every(1000, async () => {
    let answer;
    try {
      answer = await getJson("/baton/cluster");
    } catch (error) {
      return tell((error.status === 403 ? "" : "The router does not answer: ") + error.message, true);
    }
    if (notice.textContent.startsWith("The router does not answer")) tell("");
    const { status, admin } = answer;
    const of = (role) => status.workers.filter((w) => w.info.role === role);
    scaling.hidden = !admin;
    if (!sized) {
      sized = true;
      prefill.value = Math.max(1, of("prefill").length);
      decode.value = Math.max(1, of("decode").length);
    }
    summary.replaceChildren(figure("model", status.model_name), figure("requests", count(status.requests_total)),
      figure("failed", count(status.requests_failed)), figure("in flight", count(status.requests_in_flight)),
      figure("up", duration(status.uptime_s)));
    // A button that has the focus must stay the same element: cards are made anew only when they changed.
    const text = JSON.stringify(status.workers.map((w) => ({ ...w, heartbeat_age_ms: 0 })));
    if (text === last) return;
    last = text;
    const focused = document.activeElement?.getAttribute?.("aria-label");
    pools.replaceChildren(...POOLS.map((pool) => poolSection(pool, of(pool.role), admin ? buttons : null)));
    if (focused) [...pools.querySelectorAll("button")].find((b) => b.getAttribute("aria-label") === focused)?.focus();
    refused.replaceChildren(...(status.refused.length === 0 ? [] : [h("h2", {}, "Refused at registration"),
      h("ul", {}, status.refused.map((r) => h("li", {}, r)))]));
  });
  return stop;
}
