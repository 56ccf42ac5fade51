// Talking to the router that served this page. Where it asks for API keys, the key is kept as long as the tab.

const KEY = "baton-api-key";

export function setKey(key) {
  sessionStorage.setItem(KEY, key);
}

function authorization() {
  const key = sessionStorage.getItem(KEY);
  return key === null ? {} : { Authorization: "Bearer " + key };
}

async function check(response) {
  if (response.ok) return response;
  if (response.status === 401) window.dispatchEvent(new Event("key-needed"));
  let message = response.status + " " + response.statusText;
  try {
    message = (await response.json()).error.message;
  } catch {
    // not ours: the status line has to do
  }
  throw Object.assign(new Error(message), { status: response.status });
}

export const getJson = async (path) =>
  (await check(await fetch(path, { cache: "no-store", headers: authorization() }))).json();

export const postJson = async (path, body, signal) =>
  check(await fetch(path, {
    method: "POST",
    headers: { "Content-Type": "application/json", "X-Baton-Console": "1", ...authorization() },
    body: JSON.stringify(body),
    signal,
  }));

// The data of each server-sent event of a chat, parsed, until [DONE].
export async function* streamChat(body, signal) {
  const response = await postJson("/v1/chat/completions", body, signal);
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let text = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    text += value;
    for (let end; (end = text.indexOf("\n\n")) >= 0; text = text.slice(end + 2)) {
      const data = text.slice(0, end).replace(/^data: /, "");
      if (data === "[DONE]") return;
      const event = JSON.parse(data);
      if (event.error) throw new Error(event.error.message);
      yield event;
    }
  }
}
