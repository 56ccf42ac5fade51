// An answer as tokens, each shaded by its probability, and the panel that shows what else one could have been.
import { h, percent, svg } from "./dom.js";

// One of ten shades; the less likely a token was, the stronger.
const shade = (p) => "p" + Math.min(9, Math.floor(p * 10));

// In the panel: spaces at the ends and line ends can be seen.
const display = (text) => text.replace(/\n/g, "⏎").replace(/^ | $/g, "␣");

function probabilityBar(p) {
  const width = (100 * p).toFixed(2) + "%";
  return svg("svg", { class: "bar", width: "100%", height: "12", "aria-hidden": "true" },
    svg("rect", { class: "track", width: "100%", height: "12", rx: "3" }),
    svg("rect", { class: "fill", width, height: "12", rx: "3" }));
}

function probabilityRow(name, p, className, note) {
  return h("tr", { class: className }, h("th", { scope: "row" }, name, note),
    h("td", {}, probabilityBar(p)), h("td", { class: "number" }, percent(p)));
}

function makeInspector() {
  const body = h("div", { class: "inspector-body" });
  const clear = () => body.replaceChildren(h("p", { class: "muted" },
    "Point at a token, or press Tab to reach an answer and the arrow keys to walk along it."));
  const show = (token, index, total) => {
    const rows = token.top.some((t) => t.chosen) ? token.top : [...token.top, { ...token, chosen: true }];
    const rest = Math.max(0, 1 - rows.reduce((sum, t) => sum + t.p, 0));
    body.replaceChildren(
      h("p", {}, "Token ", h("strong", {}, String(index + 1)), ` of ${total}, `, h("code", {}, display(token.name)),
        token.id === undefined ? "" : h("span", { class: "muted" }, ` id ${token.id}`)),
      h("table", {},
        h("caption", { class: "hidden" }, "What it could have been"),
        h("thead", { class: "hidden" }, h("tr", {}, ["token", "bar", "probability"].map((t) => h("th", {}, t)))),
        h("tbody", {},
          rows.map((t) => probabilityRow(h("code", {}, display(t.name)), t.p, t.chosen ? "chosen" : "",
            t.chosen ? h("span", { class: "hidden" }, " (chosen)") : "")),
          probabilityRow("all others", rest, "muted", ""))));
  };
  clear();
  return {
    element: h("section", { class: "card", "aria-labelledby": "token-title" },
      h("h2", { id: "token-title" }, "Token"), body),
    show, clear,
  };
}

// Made once: the tokens of a conversation that is shown again still point to it.
export const inspector = makeInspector();

// `entry`: of the API's logprobs.
function tokenOf(entry, id, decoder) {
  const named = (t) => ({ name: t.token, p: Math.exp(t.logprob) });
  return {
    ...named(entry), id,
    text: decoder.decode(new Uint8Array(entry.bytes ?? []), { stream: true }),  // nothing until a character is whole
    top: entry.top_logprobs.map((t) => ({ ...named(t), chosen: t.token === entry.token })),
  };
}

// An answer that grows by `push`. Its tokens are one stop for Tab; the arrow keys walk along them.
export function makeAnswer() {
  const tokens = [];
  const spans = [];
  const decoder = new TextDecoder();
  const element = h("p", { class: "answer", role: "group", "aria-label": "Answer; the arrow keys walk along its tokens" });
  let current = -1;
  const select = (index, focus) => {
    if (current >= 0) {
      spans[current].classList.remove("current");
      spans[current].tabIndex = -1;
    }
    current = index;
    spans[index].classList.add("current");
    spans[index].tabIndex = 0;
    if (focus) spans[index].focus();
    inspector.show(tokens[index], index, tokens.length);
  };
  element.addEventListener("keydown", (event) => {
    const to = { ArrowRight: current + 1, ArrowLeft: current - 1, Home: 0, End: spans.length - 1 }[event.key];
    if (to === undefined || event.altKey || event.ctrlKey || event.metaKey) return;
    event.preventDefault();
    if (to >= 0 && to < spans.length) select(to, true);
  });
  const push = (entry, id) => {
    const token = tokenOf(entry, id, decoder);
    const index = tokens.push(token) - 1;
    const span = h("span", {
      class: `token ${shade(token.p)}`, tabindex: index === 0 ? 0 : -1, role: "button",
      "aria-label": `${token.name}, ${percent(token.p)}`,
      onfocus: () => current === index || select(index, false),
      onmouseenter: () => select(index, false),
      onclick: () => select(index, true),
    }, token.text === "" ? "·" : token.text);
    spans.push(span);
    element.append(span);
  };
  // The last one is the model's end of sequence, no part of the text.
  const markEnd = () => spans.at(-1)?.classList.add("special");
  return { element, tokens, push, markEnd, showFirst: () => spans.length > 0 && current < 0 && select(0, false) };
}

export function legend() {
  return h("div", { class: "legend", "aria-hidden": "true" }, h("span", {}, "unlikely"),
    [...Array(10).keys()].map((i) => h("span", { class: "swatch p" + i })), h("span", {}, "certain"));
}
