// From a request's record (/baton/requests/<id>) to what the journey draws: lanes of bars on one time line, and what to say
// at each stop. Pure. Milliseconds since the request's arrival.
import { bytes, count, ms } from "./dom.js";

const REASONS = {
  stop: "the model sampled its end-of-sequence token, or text matched a stop string",
  length: "the answer reached the most tokens that were asked for, or the context's end",
  cancelled: "the client went away",
  error: "an error",
};

const NEVER = "It never came to that.";

const plural = (n, one, many = one + "s") => `${count(n)} ${Number(n) === 1 ? one : many}`;
const bar = (from, to, kind, label) => ({ from: Math.max(0, Math.min(from, to)), to: Math.max(from, to), kind, label });

function tokenizeStop(r, m) {
  const bars = [bar(0, m.tokenized, "router", "tokenize")];
  if (m.placed !== null) bars.push(bar(m.tokenized, m.placed, "wait", "waits for a place"));
  return {
    key: "tokenize", title: "Tokenize", who: "router", bars, ticks: [],
    text: `The router turned the text into ${plural(r.prompt_tokens, "token id")} in ${ms(r.stations_ms.tokenize)}. ` +
      (m.placed === null ? "No worker was chosen."
        : `${ms(m.placed - m.tokenized)} later it had chosen who does the work: ` +
          (r.mode === "local" ? "the decode worker computes the prompt too."
            : "one worker to read the prompt, one to write the answer.")),
  };
}

function prefillStop(r, m) {
  const took = r.stations_ms.prefill;
  const end = m.first_token ?? m.prefilled;
  const bars = [];
  if (end !== null) {
    const begin = end - took;
    const reserved = m.reserved ?? m.placed;
    if (m.reserved !== null) bars.push(bar(m.placed, m.reserved, "wait", "decode reserves room"));
    if (reserved !== null && begin > reserved) bars.push(bar(reserved, begin, "wait", "waits for the engine"));
    bars.push(bar(begin, end, r.mode === "local" ? "decode" : "prefill", "prefill"));
  }
  const computed = r.prompt_tokens - r.cached_tokens;
  return {
    key: "prefill", title: "Prefill", who: r.prefill_worker || "nobody", bars, ticks: [],
    text: end === null ? NEVER :
      `${r.prefill_worker} read ${computed === r.prompt_tokens ? "all" : "the last"} ${plural(computed, "prompt token")} ` +
      `at once, in ${plural(r.chunks, "chunk")}, and kept a key and a value of each in every layer: ${ms(took)}.` +
      (r.cached_tokens > 0 ? ` ${plural(r.cached_tokens, "token")} more were in its prefix cache already.` : "") +
      ` It waited ${ms(r.waits_ms.prefill_queue)} for its turn. The time to the first token was ${ms(r.ttft_ms)}.`,
  };
}

function handoverStop(r, m) {
  const { bytes: size, blocks, held_blocks: held, transport, detail, transfer_ms: took, handover_ms: late } = r.kv;
  const via = [transport, detail].filter(Boolean).join(" ");
  return {
    key: "handover", title: "Hand-over", who: `${r.prefill_worker} → ${r.decode_worker}`, ticks: [],
    bars: [bar(m.kv_arrived - took, m.kv_arrived, "transfer", `${bytes(size)} · ${transport}`)],
    text: `${bytes(size)} of keys and values, ${plural(blocks, "block")}, went from ${r.prefill_worker} to ` +
      `${r.decode_worker} over ${via}. ${ms(took)} passed from the ticket to the last block, checked; ${ms(late)} of it ` +
      "after prefill had ended." +
      (held > 0 ? ` ${plural(held, "block")} did not move: decode had them cached.` : ""),
  };
}

// Where each pass of decode lay: it ended when its token was sampled. How long one took is known in the mean.
function logitsStop(r, times, pass, draw) {
  const begins = times.map((t, i) => Math.max(times[i - 1] ?? 0, t - draw - pass));
  const bars = pass === null ? [] : times.slice(1).map((t, i) => bar(begins[i + 1], t - draw, "decode", ""));
  return {
    key: "logits", title: "Probabilities", who: r.decode_worker || r.prefill_worker || "nobody", bars,
    ticks: pass === null ? times.slice(1) : [],
    text: times.length === 0 ? NEVER : times.length < 2 ? "The first token's probabilities came with prefill; no step of decode was needed." :
      "Each step computes one position, the newest, looking back at the KV cache, and gives every token of the " +
      "vocabulary a probability. " +
      (pass === null ? "The router ended the request itself, so the worker's figures are not known."
        : `${plural(r.steps, "pass", "passes")} on ${r.decode_worker}, ${ms(pass)} each in the mean, each shared with ` +
          "whatever else was in the batch."),
  };
}

function sampleStop(r, times, draw) {
  return {
    key: "sample", title: "Sample", who: r.mode === "remote" ? "both workers" : r.prefill_worker || "nobody",
    bars: times.map((t) => bar(t - draw, t, "sample", "")), ticks: [],
    text: times.length === 0 ? NEVER : `One token is drawn from the probabilities, by temperature and the seed ${r.seed}: ` +
      `${plural(times.length, "draw")}, ${ms(draw)} each in the mean. ` +
      "The draw depends on seed and position only, so another worker would have drawn the same.",
  };
}

function emitStop(r, times) {
  const missing = r.completion_tokens - times.length;
  return {
    key: "emit", title: "Emit and append", who: "router", bars: [], ticks: times,
    text: times.length === 0 ? NEVER : `Each token left as it was sampled and was appended to the sequence for the next step. ` +
      (times.length < 2 ? "" :
        `Between two tokens (ITL) ${ms(r.itl_p50_ms)} in the median, ${ms(r.itl_p99_ms)} at the 99th percentile. `) +
      `The router's own part was ${ms(r.stations_ms.emit)} over all tokens.` +
      (missing > 0 ? ` ${plural(missing, "token")} of other choices, or beyond the log's bound, are not drawn.` : ""),
  };
}

function stopStop(r, m, times) {
  const last = times.at(-1) ?? m.tokenized;
  const why = r.code === "OK" ? r.finish_reasons.map((f) => REASONS[f] ?? f).join("; ") : `${r.code}: ${r.message}`;
  return {
    key: "stop", title: "Stop", who: "router", bars: [bar(last, m.ended, "router", "end")], ticks: [],
    text: `After ${plural(r.completion_tokens, "token")} it ended: ${why}. Turning ids into text and looking for stop ` +
      `strings took ${ms(r.stations_ms.stop)} in all. From arrival to end ${ms(r.total_ms)}.`,
  };
}

export function stationsOf(r) {
  const m = r.moments_ms;
  const times = r.token_ms;
  const draw = times.length > 0 ? r.stations_ms.sample / Math.max(1, r.completion_tokens) : 0;
  const pass = r.stations_ms.logits === null || r.steps === 0 ? null : r.stations_ms.logits / r.steps;
  const stops = [tokenizeStop(r, m), prefillStop(r, m)];
  if (m.kv_arrived !== null) stops.push(handoverStop(r, m));
  stops.push(logitsStop(r, times, pass, draw), sampleStop(r, times, draw), emitStop(r, times), stopStop(r, m, times));
  let number = 0;
  for (const stop of stops) stop.number = stop.key === "handover" ? "" : String(++number);
  return { stops, total: Math.max(m.ended, 0.001) };
}

// The part of the time line that a stop is about, with some room around it.
export function spanOf(stop, total) {
  const all = [...stop.bars.flatMap((b) => [b.from, b.to]), ...stop.ticks];
  if (all.length === 0) return [0, total];
  const from = Math.min(...all), to = Math.max(...all);
  const room = Math.max(0.15 * (to - from), 1e-3 * total, 0.005);
  return [Math.max(0, from - room), Math.min(total, to + room)];
}
