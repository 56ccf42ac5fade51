// Making elements. Text only ever goes in as text: nothing here, or anywhere in the console, parses HTML.

const SVG = "http://www.w3.org/2000/svg";

function fill(element, props, children) {
  for (const [name, value] of Object.entries(props ?? {})) {
    if (value === undefined || value === null || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (name === "value" || name === "checked" || name === "disabled") element[name] = value;
    else element.setAttribute(name, value === true ? "" : String(value));
  }
  element.append(...children.flat().filter((c) => c !== null && c !== undefined && c !== false));
  return element;
}

export const h = (tag, props, ...children) => fill(document.createElement(tag), props, children);
export const svg = (tag, props, ...children) => fill(document.createElementNS(SVG, tag), props, children);

// 0.213 -> "0.21 ms", 1530 -> "1.53 s".
export function ms(value) {
  if (value === null || value === undefined) return "–";
  if (value >= 10000) return (value / 1000).toFixed(1) + " s";
  if (value >= 1000) return (value / 1000).toFixed(2) + " s";
  if (value >= 100) return value.toFixed(0) + " ms";
  if (value >= 10) return value.toFixed(1) + " ms";
  return value.toFixed(2) + " ms";
}

export function bytes(value) {
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let unit = 0;
  while (value >= 1024 && unit + 1 < units.length) {
    value /= 1024;
    ++unit;
  }
  return (unit === 0 || value >= 100 ? value.toFixed(0) : value.toFixed(1)) + " " + units[unit];
}

export const count = (value) => Number(value).toLocaleString("en");

export function percent(p) {
  if (p >= 0.9995) return "100 %";
  return (p < 0.001 ? "< 0.1" : (100 * p).toFixed(1)) + " %";
}

// Steps of 1, 2 or 5 times a power of ten that cut `span` into about `parts`.
export function niceStep(span, parts) {
  const raw = Math.max(span, 1e-9) / Math.max(parts, 1);
  const power = 10 ** Math.floor(Math.log10(raw));
  return power * ([1, 2, 5].find((f) => f * power >= raw) ?? 10);
}

// What a page keeps running while it is shown: `tick` at once and every `period` ms, one at a time, not while hidden.
export function every(period, tick) {
  let stopped = false;
  let timer = 0;
  const run = async () => {
    if (!document.hidden) await tick();
    if (!stopped) timer = setTimeout(run, period);
  };
  run();
  return () => {
    stopped = true;
    clearTimeout(timer);
  };
}
