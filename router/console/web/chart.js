// A chart over the last seconds, as SVG: axes with units, one line for each series.
import { niceStep, svg } from "./dom.js";

const LEFT = 52, RIGHT = 10, TOP = 8, BOTTOM = 24;

const ago = (s) => (s === 0 ? "now" : s % 60 === 0 ? `−${s / 60} min` : `−${s} s`);

function axisLabel(value, step) {
  return value.toLocaleString("en", { maximumFractionDigits: step < 1 ? Math.ceil(-Math.log10(step)) : 0 });
}

// One path; breaks where `gaps` says that zero means nothing was there.
function linePath(points, gaps) {
  let path = "";
  let open = false;
  for (const [x, y, value] of points) {
    const there = !gaps || value > 0;
    if (there) path += `${open ? "L" : "M"}${x.toFixed(1)} ${y.toFixed(1)}`;
    open = there;
  }
  return path;
}

// `seconds` are the newest `span` ones, or fewer.
export function drawChart(box, seconds, span, { title, unit, lines, gaps }) {
  const width = Math.max(240, box.clientWidth), height = 190;
  const most = Math.max(0, ...seconds.flatMap((s) => lines.map((line) => s[line.key])));
  const step = Math.max(niceStep(Math.max(most, 1e-3), 4), unit === "ms" ? 0 : 1);
  const top = Math.max(step, Math.ceil(most / step) * step);
  const y = (value) => TOP + (height - TOP - BOTTOM) * (1 - value / top);
  const end = seconds.at(-1)?.t ?? 0;
  const x = (t) => width - RIGHT - (width - LEFT - RIGHT) * (end - t) / (span - 1);

  const parts = [];
  for (let value = 0; value <= top + step / 2; value += step) {
    parts.push(svg("line", { class: "grid", x1: LEFT, x2: width - RIGHT, y1: y(value), y2: y(value) }),
      svg("text", { class: "axis", x: LEFT - 6, y: y(value) + 4, "text-anchor": "end" }, axisLabel(value, step)));
  }
  for (let i = 0; i <= 3; ++i) {
    const s = span * i / 3;
    const at = LEFT + (width - LEFT - RIGHT) * (1 - i / 3);
    const anchor = i === 0 ? "end" : i === 3 ? "start" : "middle";
    parts.push(svg("text", { class: "axis", x: at, y: height - 6, "text-anchor": anchor }, ago(s)));
  }
  // The first one is drawn last: it is what matters.
  for (const line of [...lines].reverse()) {
    const points = seconds.map((s) => [x(s.t), y(s[line.key]), s[line.key]]);
    parts.push(svg("path", { class: "line " + line.className, d: linePath(points, gaps) }));
    for (const [cx, cy, value] of gaps ? points : []) {
      if (value > 0) parts.push(svg("circle", { class: "dot " + line.className, cx, cy, r: span > 200 ? 1.5 : 2.5 }));
    }
  }
  const mostOf = (line) => Math.max(0, ...seconds.map((s) => s[line.key])).toFixed(1);
  const words = `${title} in ${unit}: ` + lines.map((line) => `${line.name} at most ${mostOf(line)}`).join(", ");
  box.replaceChildren(svg("svg", { width, height, role: "img", "aria-label": words }, parts));
}
