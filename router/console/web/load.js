// Load: the router's last minutes, second by second.
import { getJson } from "./api.js";
import { drawChart } from "./chart.js";
import { every, h, ms } from "./dom.js";

const a = (key, name) => ({ key, name, className: "line-a" });
const b = (key, name) => ({ key, name, className: "line-b" });

// `gaps`: zero means that there was nothing to measure.
const CHARTS = [
  { title: "Time to first token", unit: "ms", about: "from a request's arrival to its first token leaving", gaps: true,
    lines: [a("ttft_p50_ms", "p50"), b("ttft_p99_ms", "p99")] },
  { title: "Between tokens", unit: "ms", about: "inter-token latency, over all requests", gaps: true,
    lines: [a("itl_p50_ms", "p50"), b("itl_p99_ms", "p99")] },
  { title: "Throughput", unit: "tokens/s", about: "tokens that left, and prompt tokens that were read",
    lines: [a("generated_tokens", "generated"), b("prompt_tokens", "prompt")] },
  { title: "Concurrency", unit: "requests", about: "the most at once in each second",
    lines: [a("in_flight", "in flight"), b("queued", "queued in the router")] },
];

function latest(seconds, line, unit, gaps) {
  const found = gaps ? seconds.findLast((s) => s[line.key] > 0) : seconds.at(-1);
  if (found === undefined) return "–";
  return unit === "ms" ? ms(found[line.key]) : String(found[line.key]);
}

export function load(root) {
  const span = h("select", { id: "span" },
    [[60, "1 minute"], [180, "3 minutes"], [600, "10 minutes"]].map(([s, text]) => h("option", { value: s }, text)));
  span.value = "180";
  const notice = h("p", { class: "notice bad", role: "status", hidden: true });
  const figures = CHARTS.map((chart, i) => (
    { chart, id: "chart-" + i, box: h("div", { class: "plot" }), now: h("p", { class: "now" }) }));
  root.append(h("div", { class: "title" }, h("h1", {}, "Load"), h("label", { for: "span" }, "of the last "), span), notice,
    h("div", { class: "charts" }, figures.map(({ chart, box, now, id }) =>
      h("figure", { class: "card", "aria-labelledby": id },
        h("figcaption", {}, h("h2", { id }, chart.title, h("span", { class: "muted" }, ` ${chart.unit}`)),
          h("p", { class: "muted small" }, chart.about)),
        now, box))));

  let seconds = [];
  const draw = () => {
    const shown = seconds.slice(-Number(span.value));
    for (const { chart, box, now } of figures) {
      now.replaceChildren(...chart.lines.map((line) => h("span", { class: "key" },
        h("span", { class: "swatch " + line.className }), line.name + " ",
        h("strong", {}, latest(shown, line, chart.unit, chart.gaps)))));
      drawChart(box, shown, Number(span.value), chart);
    }
  };
  span.addEventListener("change", draw);
  const observer = new ResizeObserver(draw);
  observer.observe(root);
  const stop = every(1000, async () => {
    try {
      seconds = (await getJson("/baton/load")).seconds;
      notice.hidden = true;
    } catch (error) {
      notice.hidden = false;
      notice.textContent = "The router does not answer: " + error.message;
    }
    draw();
  });
  return () => {
    stop();
    observer.disconnect();
  };
}
