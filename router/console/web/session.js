// What this browser tab asked for. The router keeps no text, so the words of a journey come from here.

export const messages = [];        // of the running chat, as the API takes them
export const answers = new Map();  // request id -> [{text, p}] of its tokens

const KEPT = 100;

export function remember(id, tokens) {
  answers.set(id, tokens);
  if (answers.size > KEPT) answers.delete(answers.keys().next().value);
}
