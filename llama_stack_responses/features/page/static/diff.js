// The differences of two texts, word by word.

const BOUND = 3000; // words of each side; longer texts are compared line by line, and those by their ends alone
const words = (text) => text.match(/\s+|[\p{L}\p{N}_]+|[^\s\p{L}\p{N}_]/gu) ?? [];
const lines = (text) => text.match(/[^\n]*\n|[^\n]+$/g) ?? [];

function split(a, b) {
  const [x, y] = [words(a), words(b)];
  if (x.length <= BOUND && y.length <= BOUND) return [x, y];
  return [lines(a), lines(b)];
}

/** Return `[kind, text]` with kind `same`, `del` or `ins`. */
export function difference(a, b) {
  if (a === b) return a ? [["same", a]] : [];
  const [x, y] = split(a, b);
  let start = 0;
  while (start < x.length && start < y.length && x[start] === y[start]) start += 1;
  let end = 0;
  while (end < x.length - start && end < y.length - start && x[x.length - 1 - end] === y[y.length - 1 - end]) end += 1;
  const middle = longest(x.slice(start, x.length - end), y.slice(start, y.length - end));
  return joined([["same", x.slice(0, start).join("")], ...middle, ["same", x.slice(x.length - end).join("")]]);
}

/** The classic table of longest common subsequences, within a bound. */
function longest(x, y) {
  if (!x.length || !y.length || x.length > BOUND || y.length > BOUND) return [["del", x.join("")], ["ins", y.join("")]];
  const width = y.length + 1;
  const table = new Uint16Array((x.length + 1) * width);
  for (let i = x.length - 1; i >= 0; i -= 1) {
    for (let j = y.length - 1; j >= 0; j -= 1) {
      table[i * width + j] = x[i] === y[j] ? table[(i + 1) * width + j + 1] + 1 : Math.max(table[(i + 1) * width + j], table[i * width + j + 1]);
    }
  }
  const found = [];
  let [i, j] = [0, 0];
  while (i < x.length && j < y.length) {
    if (x[i] === y[j]) found.push(["same", x[i++]]), (j += 1);
    else if (table[(i + 1) * width + j] >= table[i * width + j + 1]) found.push(["del", x[i++]]);
    else found.push(["ins", y[j++]]);
  }
  return [...found, ["del", x.slice(i).join("")], ["ins", y.slice(j).join("")]];
}

const UNLIKE = 0.5; // share of equal characters below which equal words among the changes are chance
const length = (parts, kind) => parts.reduce((sum, [one, text]) => sum + (one === kind ? text.trim().length : 0), 0);

/** Of texts that are not alike, keep as equal only what is longer than the changes on both of its sides. */
function meaningful(parts) {
  const same = length(parts, "same");
  if (same >= UNLIKE * (same + Math.max(length(parts, "del"), length(parts, "ins")))) return parts;
  let found = readable(parts);
  for (let before = null; before !== found.length; ) {
    before = found.length;
    found = readable(found.map(([kind, text], index) => (kind === "same" && short(found, index) ? ["both", text] : [kind, text])));
  }
  return found;
}

/** Whether an equal part is shorter than the changes around it. */
function short(parts, index) {
  const around = (from, by) => {
    let longest = 0;
    for (let at = from + by; parts[at] && parts[at][0] !== "same"; at += by) longest = Math.max(longest, parts[at][1].length);
    return longest;
  };
  return parts[index][1].length <= Math.min(around(index, -1), around(index, 1));
}

/** Join neighbours of one kind. */
function merged(parts) {
  const found = [];
  for (const [kind, text] of parts) {
    if (found.at(-1)?.[0] === kind) found.at(-1)[1] += text;
    else found.push([kind, text]);
  }
  return found;
}

/** Take the blanks between changed words to the changes, so that they read as one: all that goes, then all that comes. */
function readable(parts) {
  const found = [];
  let [gone, come] = ["", ""];
  const flush = () => {
    if (gone) found.push(["del", gone]);
    if (come) found.push(["ins", come]);
    [gone, come] = ["", ""];
  };
  for (const [index, [kind, text]] of parts.entries()) {
    const between = kind === "same" && /^[^\S\n]+$/.test(text) && (gone || come) && ["del", "ins"].includes(parts[index + 1]?.[0]);
    if (kind === "del" || kind === "both" || between) gone += text;
    if (kind === "ins" || kind === "both" || between) come += text;
    if (kind !== "same" || between) continue;
    flush();
    found.push([kind, text]);
  }
  flush();
  return found;
}

const joined = (parts) => merged(readable(meaningful(merged(parts.filter(([, one]) => one)))));
