// Journey: one request through the six stations, to scale, step by step.
import { getJson } from "./api.js";
import { bytes, count, every, h, ms, percent } from "./dom.js";
import { answers } from "./session.js";
import { spanOf, stationsOf } from "./stations.js";
import { drawTimeline } from "./timeline.js";

const clock = (unixMs) => new Date(unixMs).toLocaleTimeString("en-GB");

function figure(name, value) {
  return h("div", { class: "figure" }, h("dt", {}, name), h("dd", {}, value));
}

function figures(r) {
  return h("dl", { class: "figures wide" },
    figure("prompt", `${count(r.prompt_tokens)} tokens`), figure("answer", `${count(r.completion_tokens)} tokens`),
    figure("TTFT", ms(r.ttft_ms)), figure("ITL, median", ms(r.itl_p50_ms)), figure("ITL, p99", ms(r.itl_p99_ms)),
    figure("KV moved", r.kv.bytes > 0 ? bytes(r.kv.bytes) : "none"),
    figure("total", ms(r.total_ms)));
}

function forecast(mode) {
  if (mode === undefined) return "";
  const where = mode.mode === "remote" ? "to a prefill worker" : "to the decode worker itself";
  return `; the prompt went ${where}, for ${ms(mode.ttft_ms)} predicted to the first token`;
}

// Why it went where it went, in its last attempt.
function placementTable(r) {
  const decision = r.placement?.decisions?.at(-1);
  if (decision === undefined) return null;
  const row = (side) => (c, i) => h("tr", { class: i === 0 ? "chosen" : "" },
    h("td", {}, side), h("th", { scope: "row" }, c.worker), h("td", { class: "number" }, ms(c.predicted_ms)),
    h("td", {}, c.note || (i === 0 ? "chosen" : "")));
  const rows = [...decision.prefill.map(row("prefill")), ...decision.decode.map(row("decode"))];
  if (rows.length === 0) return null;
  return h("details", { class: "card" }, h("summary", {}, "Why these workers"),
    h("p", { class: "muted" }, `Policy ${decision.policy}${forecast(decision.modes?.[0])}.`),
    h("div", { class: "scroll" }, h("table", {},
      h("thead", {}, h("tr", {}, ["side", "worker", "predicted", "note"].map((t) => h("th", { scope: "col" }, t)))),
      h("tbody", {}, rows))));
}

function tokenStrip(r, onPoint) {
  const mine = answers.get(r.id);
  const token = (t, i) => {
    const known = mine?.[i];
    const gap = i === 0 ? ms(t) : `+${ms(t - r.token_ms[i - 1])}`;
    return h("li", {
      title: known ? `${percent(known.p)}, ${gap}` : gap, onmouseenter: () => onPoint(t), onmouseleave: () => onPoint(null),
    }, h("span", { class: known ? "text" : "text unknown" }, known ? known.text || "·" : String(i)), h("small", {}, gap));
  };
  return h("section", { class: "card", "aria-labelledby": "tokens-title" },
    h("h2", { id: "tokens-title" }, "Tokens, and the time to each"),
    h("ol", { class: "strip", "aria-label": "Tokens" }, r.token_ms.map(token)),
    mine ? null : h("p", { class: "muted small" }, "Only their moments are known here: the router keeps no text. " +
      "A chat of this tab's Play page shows its words."));
}

function listItem(r) {
  const outcome = r.code === "OK" ? ms(r.total_ms) : r.code;
  return h("li", {}, h("a", { href: "#journey/" + encodeURIComponent(r.id), "data-id": r.id },
    h("span", {}, clock(r.arrived_unix_ms), answers.has(r.id) ? " · yours" : ""),
    h("span", { class: "muted small" }, `${count(r.prompt_tokens)} → ${count(r.completion_tokens)} tokens, ${outcome}`)));
}

// One request, with its keys. Returns what to call at the end.
function showRequest(box, r) {
  const { stops, total } = stationsOf(r);
  let selected = 0;
  let zoom = false;
  let cursor = null;
  const line = h("div", { class: "timeline" });
  const number = h("span", { class: "muted" });
  const title = h("h2", { id: "stop-title" });
  const text = h("p", {});
  const previous = h("button", { type: "button", onclick: () => step(-1) }, "← Previous");
  const next = h("button", { type: "button", class: "primary", onclick: () => step(1) }, "Next →");
  const zoomBox = h("input", { type: "checkbox", id: "zoom", onchange: () => setZoom(zoomBox.checked) });
  const draw = () => drawTimeline(line, stops, zoom ? spanOf(stops[selected], total) : [0, total], selected, cursor, go);
  const tell = () => {
    const stop = stops[selected];
    title.textContent = (stop.number === "" ? "" : stop.number + "  ") + stop.title;
    number.textContent = stop.number === "" ? "between two stations" : `station ${stop.number} of 6 · ${stop.who}`;
    text.textContent = stop.text;
    previous.disabled = selected === 0;
    next.disabled = selected === stops.length - 1;
    draw();
  };
  const go = (index) => {
    selected = Math.min(Math.max(index, 0), stops.length - 1);
    tell();
  };
  const step = (by) => {
    const held = document.activeElement;
    go(selected + by);
    if (held === next && next.disabled) previous.focus();
    if (held === previous && previous.disabled) next.focus();
  };
  const setZoom = (on) => {
    zoom = zoomBox.checked = on;
    draw();
  };
  box.replaceChildren(
    h("p", { class: "request-id" }, h("code", {}, r.id), " ",
      h("span", { class: "badge " + (r.code === "OK" ? "ready" : "lost") }, r.code),
      r.attempts > 1 ? ` after ${r.attempts} attempts` : ""),
    figures(r),
    h("section", { class: "card", "aria-label": "Time line" }, line),
    h("section", { class: "card stop", "aria-labelledby": "stop-title" },
      h("div", { class: "stop-text", role: "status" }, title, number, text),
      h("div", { class: "buttons" }, previous, next, h("label", { class: "check" }, zoomBox, " zoom to it"),
        h("span", { class: "muted keys" }, "keys: ← → z"))),
    tokenStrip(r, (t) => {
      cursor = t;
      draw();
    }),
    placementTable(r) ?? "");
  tell();
  const onKey = (event) => {
    if (event.altKey || event.ctrlKey || event.metaKey) return;
    if (event.key === "ArrowRight") step(1);
    else if (event.key === "ArrowLeft") step(-1);
    else if (event.key === "z") setZoom(!zoom);
    else return;
    event.preventDefault();
  };
  document.addEventListener("keydown", onKey);
  const observer = new ResizeObserver(draw);
  observer.observe(line);
  return () => {
    document.removeEventListener("keydown", onKey);
    observer.disconnect();
  };
}

export function journey(root, wanted) {
  const list = h("ol", { class: "requests" });
  const empty = h("p", { class: "muted" }, "No request has ended yet. Ask something on the ",
    h("a", { href: "#play" }, "Play"), " page.");
  const box = h("div", { class: "request" });
  root.append(h("h1", {}, "Journey"), h("div", { class: "columns reverse" },
    h("section", { class: "card list", "aria-labelledby": "latest" },
      h("h2", { id: "latest" }, "Latest requests"), empty, list), box));
  let shown = null;  // the id
  let end = () => {};

  async function show(id) {
    if (id === shown) return;
    shown = id;
    try {
      const record = await getJson("/baton/requests/" + encodeURIComponent(id));
      if (shown !== id) return;
      end();
      end = showRequest(box, record);
    } catch (error) {
      if (shown !== id) return;
      end();
      end = () => {};
      box.replaceChildren(h("p", { class: "notice bad" }, error.message));
    }
    mark();
  }
  const mark = () => {
    for (const link of list.querySelectorAll("a")) {
      if (link.dataset.id === shown) link.setAttribute("aria-current", "true");
      else link.removeAttribute("aria-current");
    }
  };

  let last = "";
  const stop = every(2000, async () => {
    let requests;
    try {
      ({ requests } = await getJson("/baton/requests"));
    } catch (error) {
      empty.hidden = false;
      empty.replaceChildren("The router does not answer: " + error.message);
      return;
    }
    empty.hidden = requests.length > 0;
    const text = requests.map((r) => r.id).join(" ");
    if (text !== last) {
      last = text;
      const focused = document.activeElement?.dataset?.id;
      list.replaceChildren(...requests.slice(0, 50).map(listItem));
      if (focused) list.querySelector(`[data-id="${CSS.escape(focused)}"]`)?.focus();
      mark();
    }
    if (wanted === "" && shown === null && requests.length > 0) await show(requests[0].id);
  });
  if (wanted !== "") show(wanted);
  return () => {
    stop();
    end();
  };
}
