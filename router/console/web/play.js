// Play: a chat whose answer comes token by token, each with its probability and what else it could have been.
import { getJson, streamChat } from "./api.js";
import { h, ms } from "./dom.js";
import { messages, remember } from "./session.js";
import { inspector, legend, makeAnswer } from "./tokens.js";

const ALTERNATIVES = 5;
const ENDS = { stop: "ended by itself", length: "cut at max tokens", tool_calls: "asked for a tool" };

// These survive a visit to another page.
const settings = { temperature: "0.8", seed: "", max_tokens: "120" };
let shown = [];  // the conversation's elements

function setting(name, label, attributes, hint) {
  const input = h("input", {
    id: name, type: "number", inputmode: "decimal", value: settings[name], "aria-describedby": name + "-hint",
    oninput: () => (settings[name] = input.value), ...attributes,
  });
  return h("div", { class: "setting" }, h("label", { for: name }, label), input,
    h("small", { id: name + "-hint" }, hint));
}

function samplingCard() {
  return h("section", { class: "card", "aria-labelledby": "sampling-title" },
    h("h2", { id: "sampling-title" }, "Sampling"),
    setting("temperature", "Temperature", { min: 0, max: 100, step: 0.1 }, "0 takes the likeliest token"),
    setting("seed", "Seed", { step: 1 }, "same seed, same answer; empty: drawn"),
    setting("max_tokens", "Max tokens", { min: 1, step: 1 }, "of the answer"));
}

function requestBody(text) {
  const body = {
    messages: [...messages, { role: "user", content: text }],
    stream: true, logprobs: true, top_logprobs: ALTERNATIVES, return_token_ids: true,
  };
  for (const [name, value] of Object.entries(settings)) {
    if (value !== "") body[name] = Number(value);
  }
  return body;
}

// Fills `answer` as tokens come, calling `onToken` after each event. What it was: also when it failed or was stopped.
async function run(text, answer, signal, onToken) {
  const result = { id: "", content: "", reason: "", first: 0, failed: false };
  const begun = performance.now();
  try {
    for await (const event of streamChat(requestBody(text), signal)) {
      result.id = event.id;
      const choice = event.choices[0];
      if (choice === undefined) continue;
      result.content += choice.delta?.content ?? "";
      (choice.logprobs?.content ?? []).forEach((entry, i) => answer.push(entry, choice.token_ids?.[i]));
      if (result.first === 0 && answer.tokens.length > 0) result.first = performance.now() - begun;
      result.reason = choice.finish_reason ?? result.reason;
      onToken(result);
    }
  } catch (error) {
    result.failed = !signal.aborted;
    result.reason = signal.aborted ? "stopped by you" : error.message;
  }
  return result;
}

// What is said under an answer.
async function describe(foot, result, tokens) {
  const said = ENDS[result.reason] ?? result.reason;
  foot.classList.toggle("bad", result.failed);
  if (result.id === "") return foot.replaceChildren(said);
  let text = `${said} · ${tokens} tokens · first after ${ms(result.first)}`;
  // One that was stopped has not ended yet: what the browser saw has to do.
  const ended = result.reason in ENDS;
  const record = ended ? await getJson("/baton/requests/" + encodeURIComponent(result.id)).catch(() => null) : null;
  if (record !== null) text = `${said} · ${tokens} tokens · TTFT ${ms(record.ttft_ms)} · ITL ${ms(record.itl_p50_ms)}`;
  foot.replaceChildren(text + " · ", h("a", { href: "#journey/" + encodeURIComponent(result.id) }, "its journey"));
}

export function play(root) {
  const status = h("p", { class: "hidden", role: "status" });
  const log = h("div", { class: "log", role: "region", "aria-label": "Conversation", tabindex: 0 },
    shown.length > 0 ? shown : h("p", { class: "muted empty" }, "Ask something. The answer is shaded by how sure the model was of each token."));
  const input = h("textarea", { id: "question", rows: 2, placeholder: "Ask something…", "aria-label": "Your message" });
  const send = h("button", { type: "submit", class: "primary" }, "Send");
  const stop = h("button", { type: "button", disabled: true, onclick: () => running?.abort() }, "Stop");
  const fresh = h("button", { type: "button", onclick: () => begin() }, "New chat");
  let running = null;

  const toEnd = () => (log.scrollTop = log.scrollHeight);
  const say = (className, ...children) => {
    const element = h("div", { class: "message " + className }, ...children);
    if (shown.push(element) === 1) log.replaceChildren();
    log.append(element);
    toEnd();
  };
  const setRunning = (abort) => {
    running = abort;
    send.disabled = abort !== null;
    stop.disabled = abort === null;
  };
  const begin = () => {
    running?.abort();
    messages.length = 0;
    shown = [];
    log.replaceChildren();
    inspector.clear();
    input.focus();
  };

  async function ask(text) {
    const answer = makeAnswer();
    const foot = h("p", { class: "foot muted" }, "waiting for the first token…");
    say("user", h("p", {}, text));
    say("assistant", answer.element, foot);
    const conversation = shown;
    const abort = new AbortController();
    setRunning(abort);
    status.textContent = "The answer is coming.";
    const result = await run(text, answer, abort.signal, ({ first }) => {
      foot.textContent = `${answer.tokens.length} tokens, first after ${ms(first)}`;
      if (log.scrollHeight - log.clientHeight - log.scrollTop < 80) toEnd();
    });
    if (running === abort) setRunning(null);
    if (shown !== conversation) return;  // a new chat was begun
    messages.push({ role: "user", content: text }, { role: "assistant", content: result.content });
    if (result.id !== "") remember(result.id, answer.tokens.map(({ text: t, p }) => ({ text: t, p })));
    if (answer.tokens.map((t) => t.text).join("") !== result.content && result.reason === "stop") answer.markEnd();
    answer.showFirst();
    await describe(foot, result, answer.tokens.length);
    status.textContent = result.content === "" ? foot.textContent : "Answer: " + result.content;
    if (document.activeElement === document.body) input.focus();  // Stop had it
    toEnd();
  }

  const form = h("form", {
    class: "composer",
    onsubmit: (event) => {
      event.preventDefault();
      const text = input.value.trim();
      if (text === "" || running !== null) return;
      input.value = "";
      ask(text);
    },
  }, input, h("div", { class: "buttons" }, send, stop, fresh,
    h("span", { class: "muted keys" }, "Enter sends, Esc stops")));
  input.addEventListener("keydown", (event) => {
    if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
    event.preventDefault();
    form.requestSubmit();
  });
  const onKey = (event) => event.key === "Escape" && running?.abort();
  document.addEventListener("keydown", onKey);

  root.append(h("h1", { class: "hidden" }, "Play"),
    h("div", { class: "columns" },
      h("section", { class: "card chat", "aria-label": "Chat" }, log, legend(), form, status),
      h("div", { class: "side" }, samplingCard(), inspector.element,
        h("p", { class: "muted note" }, "Probabilities are the model's own, before temperature."))));
  toEnd();
  input.focus();
  return () => {
    running?.abort();
    document.removeEventListener("keydown", onKey);
  };
}
