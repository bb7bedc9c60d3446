// What the page keeps until its tab is closed: what is typed may be confidential.

const PREFIX = "responses.kept.";
const MOST = 20; // drafts

/** Return what is kept under a name; null if nothing is. */
export function kept(name) {
  try {
    return JSON.parse(sessionStorage.getItem(PREFIX + name));
  } catch {
    return null; // nothing is kept, or the browser blocks the storage
  }
}

/** Keep a value, null for nothing; return whether the browser has taken it. */
export function keep(name, value) {
  try {
    if (value === null) sessionStorage.removeItem(PREFIX + name);
    else sessionStorage.setItem(PREFIX + name, JSON.stringify(value));
    return true;
  } catch {
    return value === null;
  }
}

/** Forget all of it, as a user who signs out expects. */
export function forget() {
  for (const name of ["settings", "chat", "drafts", "roots"]) keep(name, null);
}

/** Return the message that was being written in a chat. */
export const draftOf = (chat) => kept("drafts")?.find(([of]) => of === chat)?.[1] ?? null;

/** Keep the message that is being written in a chat, without its files if they are too large; return whether all is kept. */
export function keepDraft(chat, draft) {
  const others = (kept("drafts") ?? []).filter(([of]) => of !== chat).slice(-MOST + 1);
  if (!draft.text && !draft.files.length) return keep("drafts", others.length ? others : null);
  return keep("drafts", [...others, [chat, draft]]) || (keep("drafts", [...others, [chat, { ...draft, files: [] }]]) && !draft.files.length);
}
