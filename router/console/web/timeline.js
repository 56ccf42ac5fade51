// The journey's time line as SVG: one lane for each stop, to scale.
import { ms, niceStep, svg } from "./dom.js";

const LANE = 40, TOP = 26, RIGHT = 14, LEAST = 2;

function barOf({ from, to, kind, label }, x, y) {
  const left = x(from);
  const width = Math.max(LEAST, x(to) - left);
  const rect = svg("rect", { class: "bar-" + kind, x: left, y, width, height: 18, rx: Math.min(3, width / 3) });
  if (label !== "") rect.append(svg("title", {}, `${label}: ${ms(to - from)}`));
  return rect;
}

// Words in the bar where they fit, else behind it.
function barLabel({ from, to, kind, label }, x, y, right) {
  if (label === "" || kind === "wait") return null;
  const words = `${label} ${ms(to - from)}`;
  const width = 7 * words.length;
  if (x(to) - x(from) > width + 8) return svg("text", { class: "in-bar on-" + kind, x: x(from) + 7, y: y + 13 }, words);
  if (x(to) + width < right) return svg("text", { class: "by-bar", x: x(to) + 6, y: y + 13 }, words);
  if (x(from) - width > 0) return svg("text", { class: "by-bar", x: x(from) - 6, y: y + 13, "text-anchor": "end" }, words);
  return null;
}

// `onPick(index)`: a lane was clicked. `cursor`: a moment to mark, or null.
export function drawTimeline(box, stops, [from, to], selected, cursor, onPick) {
  const width = Math.max(300, box.clientWidth);
  const left = width > 640 ? 178 : 142;
  const height = TOP + LANE * stops.length + 6;
  const x = (t) => left + (width - left - RIGHT) * (Math.min(Math.max(t, from), to) - from) / (to - from);
  const parts = [];
  const step = niceStep(to - from, width > 640 ? 8 : 4);
  for (let i = Math.ceil(from / step); i * step <= to + 1e-9; ++i) {
    const at = x(i * step);
    const label = Number((i * step).toPrecision(6)) + (i === 0 ? " ms" : "");
    parts.push(svg("line", { class: "grid", x1: at, x2: at, y1: TOP - 6, y2: height }),
      svg("text", { class: "axis", x: at, y: TOP - 11, "text-anchor": "middle" }, label));
  }
  stops.forEach((stop, i) => {
    const top = TOP + LANE * i;
    const lane = svg("g", { class: "lane" + (i === selected ? " selected" : ""), onclick: () => onPick(i) },
      svg("rect", { class: "lane-back", x: 2, y: top, width: width - 4, height: LANE - 2, rx: 6 }));
    if (stop.number !== "") {
      lane.append(svg("circle", { class: "number-back", cx: 20, cy: top + 19, r: 11 }),
        svg("text", { class: "lane-number", x: 20, y: top + 23, "text-anchor": "middle" }, stop.number));
    }
    const room = Math.floor((left - 42) / 6.2);
    const who = stop.who.length > room ? stop.who.slice(0, room - 1) + "…" : stop.who;
    lane.append(svg("text", { class: "lane-title", x: 38, y: top + 17 }, stop.title),
      svg("text", { class: "lane-who", x: 38, y: top + 31 }, who));
    for (const bar of stop.bars) {
      if (bar.to >= from && bar.from <= to) lane.append(barOf(bar, x, top + 10));
    }
    for (const bar of stop.bars.length > 4 ? [] : stop.bars) {
      const words = bar.to >= from && bar.from <= to ? barLabel(bar, x, top + 10, width - RIGHT) : null;
      if (words !== null) lane.append(words);
    }
    for (const t of stop.ticks) {
      if (t >= from && t <= to) lane.append(svg("circle", { class: "tick", cx: x(t), cy: top + 19, r: 3.2 }));
    }
    parts.push(lane);
  });
  if (cursor !== null && cursor >= from && cursor <= to) {
    parts.push(svg("line", { class: "cursor", x1: x(cursor), x2: x(cursor), y1: TOP - 6, y2: height }));
  }
  const words = `Time line from ${ms(from)} to ${ms(to)}: ` + stops.map((s) => `${s.title} by ${s.who}`).join(", ");
  box.replaceChildren(svg("svg", { width, height, role: "img", "aria-label": words }, parts));
}
