/* The views of the workbook: questions and their answers, tiles to fill in, and steps to play. An ES module in
 * anywidget's form, without dependencies: the same in JupyterLab, where a kernel answers, and on a page without one.
 * labkit/show/view.py makes its data, labkit/show/view.css its looks.
 *
 * State of a model: `kind`, `data`, `said` (page → kernel: what the reader did), `replied` (kernel → page: HTML), and
 * of steps `step`. `data.kernel` tells that a kernel answers; without one the module does, from the data.
 */

const locked = new Map(); // without a kernel: a question's name → what was locked in
const read = new Set(); // the names of answers that were opened before
const LOCKED = "labkit-locked";

/** Make an element; `html` is what is in it, in place of children. */
function make(tag, { html, ...attributes } = {}, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (value !== false && value != null) node.setAttribute(name, value === true ? "" : value);
  }
  if (html !== undefined) node.innerHTML = html;
  node.append(...children);
  return node;
}

const press = (text, act, attributes = {}) => {
  const button = make("button", { type: "button", ...attributes }, text);
  button.addEventListener("click", act);
  return button;
};
const escaped = (text) => make("i", {}, text).innerHTML;
const count = (n, noun) => `${n} ${noun}${n === 1 ? "" : "s"}`;
const alert = (error) => `<span role="alert">${escaped(error.message)}</span>`;
const stripped = (digits) => (digits.includes(".") ? digits.replace(/\.?0+$/, "") : digits);

/** Write a number as Python's `,.10g` does. */
export function written(number) {
  if (!Number.isFinite(number)) return String(number).replace("Infinity", "inf").replace("NaN", "nan");
  if (!number) return "0";
  const [digits, power] = number.toExponential(9).split("e");
  if (+power < -4 || +power >= 10) return `${stripped(digits)}e${power[0]}${power.slice(1).padStart(2, "0")}`;
  const [whole, part] = stripped(number.toFixed(9 - power)).split(".");
  return whole.replace(/\B(?=(\d{3})+$)/g, ",") + (part ? `.${part}` : "");
}

/** Quote text as Python does. */
function quoted(text) {
  const mark = text.includes("'") && !text.includes('"') ? '"' : "'";
  return mark + text.replaceAll("\\", "\\\\").replaceAll(mark, `\\${mark}`) + mark;
}

// -- questions --------------------------------------------------------------------------------------------------------

const NUMBER = /^[-+]?(\d+\.?\d*|\.\d+)(e[-+]?\d+)?$/;
const COMMAS = /^[-+]?[1-9]\d{0,2}(,\d{3})+(?!\d)[^,]*$/;

/** Read a number as `Prediction.choice` in labkit/grading/prediction.py does. */
export function choice({ unit, negative }, said) {
  const words = said.trim().replace(/\.$/, "").replaceAll("`", "").toLowerCase();
  const digits = (unit && words.endsWith(unit.toLowerCase()) ? words.slice(0, -unit.length) : words).trim();
  const plain = digits.replace(/[,_]/g, "");
  if (!NUMBER.test(plain)) {
    throw new Error(`${quoted(said)} is not a number. Write one such as 24 or 1.5e6${unit ? `, in ${unit}` : ""}.`);
  }
  if (digits.includes(",") && !COMMAS.test(digits)) {
    const point = digits.replaceAll(",", ".");
    const instead = NUMBER.test(point) ? `Write ${point} if you mean that` : "Leave out the commas";
    throw new Error(`${quoted(said)} has a comma, which parts thousands here, as in 1,170. ${instead}.`);
  }
  const number = Number(plain);
  if (number < 0 && !negative) {
    throw new Error(`${quoted(said)} is negative, and what is asked for is not. Write a number such as 24.`);
  }
  return number;
}

/** Reply to a wrong number: its trap's words, or by how much it is off, as `Prediction.reply` does; HTML. */
function off({ answer, traps, rounding, slips }, number) {
  const caught = traps.filter(([value]) => Math.abs(number - value) <= rounding * Math.abs(value));
  if (caught.length) return caught.sort(([a], [b]) => Math.abs(number - a) - Math.abs(number - b))[0][1];
  if (!number || !answer || number < 0 !== answer < 0) return "";
  const times = Math.max(number / answer, answer / number);
  const what = Math.abs(number) > Math.abs(answer) ? "large" : "small";
  const slip = slips.filter(([factor]) => Math.abs(times - factor) <= rounding * factor).map(([, hint]) => ` ${hint}`);
  return `<p>Your number is ${written(Number(times.toPrecision(2)))} times too ${what}.${slip.join("")}</p>\n`;
}

/** Hold what was locked in against the answer, as `Answer` in labkit/show/prediction.py does; HTML. */
export function answered(data, { choice, late }) {
  const { answer, within, options, unit, short, why, elsewhere } = data;
  const right = options ? choice === answer : Math.abs(choice - answer) <= within * Math.abs(answer) * (1 + 1e-9);
  const words = options ? options[choice][0] : escaped(`${written(choice)} ${unit}`.trim().replace(/\.$/, ""));
  const chose = late ? `You chose ${words} when the answer was already there to read` : `You predicted ${words}`;
  const close = choice === answer ? "That is right." : `That is close enough: the answer is ${short}.`;
  const said = right ? `✓ ${chose}. ${close}` : `✗ ${chose}, but the answer is ${short}.`;
  const reply = right ? "" : options ? options[choice][1] : off(data, choice);
  return `<p><b>${said}</b></p>${reply}${why}${elsewhere}`;
}

/** Lock an answer in where no kernel is told of it. */
function keep(name, chosen) {
  locked.set(name, chosen);
  document.dispatchEvent(new CustomEvent(LOCKED, { detail: { name } }));
}

function predict({ model, root, tell }) {
  const data = model.get("data");
  const kept = data.kernel ? data.locked : locked.get(data.name);
  const said = make("div", { role: "status", tabindex: -1 });
  const id = unique();
  const chosen = () => radios.findIndex((radio) => radio.checked);
  const radios = (data.options ?? []).map(() => make("input", { type: "radio", name: id, disabled: !!kept }));
  const field = make("input", { type: "text", placeholder: "a number", "aria-label": "Your answer", disabled: !!kept });
  const lock = press("Lock it in", () => {
    if (data.kernel) return tell({ choice: data.options ? letter(chosen()) : field.value });
    try {
      const given = data.options ? chosen() : choice(data, field.value);
      const words = data.options ? "" : `${written(given)} ${data.unit}`.trim();
      keep(data.name, { choice: given, words, late: read.has(data.name) });
    } catch (error) {
      said.innerHTML = alert(error);
    }
  });
  lock.disabled = !!data.options;
  for (const radio of radios) radio.addEventListener("change", () => (lock.disabled = false));
  const listed = radios.map((radio, i) =>
    make("label", {}, radio, make("span", { html: `<b>${letter(i)}.</b> ${data.options[i]}` })),
  );
  root.append(
    make("div", { html: data.question }),
    data.options
      ? make("div", { role: "radiogroup", "aria-label": data.label }, ...listed)
      : make("label", { class: "labkit-field" }, "Your answer ", field, make("span", {}, ` ${data.unit}`)),
    ...(kept ? [] : [lock]),
    said,
  );
  if (!kept) return () => (said.innerHTML = model.get("replied") ?? "");
  if (data.options) radios[kept.choice].checked = true;
  else field.value = kept.words;
  const words = data.options ? `${letter(kept.choice)}. ${data.options[kept.choice]}` : escaped(kept.words);
  said.innerHTML = `Locked in: <b>${words}</b>`;
}

function choose({ model, root, tell }) {
  const data = model.get("data");
  const kept = (data.kernel ? data.locked : locked.get(data.name)?.choices) ?? data.parts.map(() => null);
  const said = make("div", { role: "status", tabindex: -1 });
  const lists = data.parts.map((part, k) => {
    const options = ["choose …", ...part.options].map((text, i) => make("option", { value: i - 1 }, text));
    const list = make("select", { "aria-label": part.label, disabled: kept[k] !== null }, ...options);
    list.value = kept[k] ?? -1;
    return list;
  });
  const lock = press("Lock in what is chosen", () => {
    const choices = lists.map((list, k) => (kept[k] === null && list.value !== "-1" ? Number(list.value) : null));
    if (choices.every((one) => one === null)) {
      said.textContent = "Nothing new is chosen. Choose an answer in one of the lists above first.";
    } else if (data.kernel) {
      tell({ choices: choices.map((one) => (one === null ? null : letter(one))) });
    } else {
      keep(data.name, { choices: choices.map((one, k) => one ?? kept[k]) });
    }
  });
  const done = kept.filter((one) => one !== null).length;
  lock.disabled = done === kept.length;
  const items = data.parts.map((part, k) => make("li", {}, make("div", { html: part.question }), lists[k]));
  root.append(make("div", { html: data.question }), make("ol", {}, ...items), lock, said);
  const words = done ? `Locked in: <b>${done} of ${kept.length}</b> answers` : "";
  return () => (said.innerHTML = model.get("replied") ?? words);
}

/** Fold an answer away, and note that it was opened. */
function folded(name, title, html) {
  const details = make("details", {}, make("summary", {}, title), make("div", { html }));
  details.addEventListener("toggle", () => details.open && read.add(name));
  return details;
}

function answer({ model, root }) {
  const data = model.get("data");
  const kept = locked.get(data.name);
  const what = data.options ? "Choose an answer" : "Type a number";
  root.setAttribute("aria-live", "polite");
  if (kept) root.append(make("div", { html: answered(data, kept) }));
  else {
    const quiet = `${what} above and lock it in, then its answer appears here.`;
    root.append(make("p", { class: "labkit-quiet" }, quiet), folded(data.name, "The answer", data.folded));
  }
}

function answers({ model, root }) {
  const data = model.get("data");
  const kept = locked.get(data.name)?.choices ?? [];
  const chosen = data.parts.map((part, k) => [part, kept[k] ?? null]).filter(([, one]) => one !== null);
  const right = chosen.filter(([part, one]) => one === part.answer).length;
  const open = data.parts.length - chosen.length;
  root.setAttribute("aria-live", "polite");
  if (!chosen.length) {
    const quiet = "Choose an answer above and lock it in, then the answers appear here.";
    root.append(make("p", { class: "labkit-quiet" }, quiet), folded(data.name, "The answers", data.folded));
    return;
  }
  const rest = open ? ` ${count(open, "question")} still open: choose above, and lock in.` : "";
  const items = data.parts.flatMap((part, k) =>
    (kept[k] ?? null) === null
      ? []
      : [make("li", { value: k + 1 }, make("div", { html: part.question }), make("div", { html: part.replies[kept[k]] }))],
  );
  root.append(make("p", {}, make("b", {}, `${right} of ${chosen.length} right.${rest}`)), make("ol", {}, ...items));
}

const letter = (i) => "abcdefghijklmnopqrstuvwxyz"[i];
let made = 0;
const unique = () => `labkit-${(made += 1)}`;

// -- all of them ------------------------------------------------------------------------------------------------------

const KINDS = { predict, choose, answer, answers };

function render({ model, el }) {
  const root = make("div", { class: "labkit-live" });
  el.append(root);
  const tell = (what) => {
    model.set("said", { ...what, nth: (model.get("said")?.nth ?? 0) + 1 }); // the same once more is a change, too
    model.save_changes();
  };
  let say; // shows what the kernel replied
  const draw = () => {
    const focused = root.contains(document.activeElement);
    root.replaceChildren();
    say = KINDS[model.get("kind")]?.({ model, root, tell });
    say?.();
    if (focused) root.querySelector("[role=status]")?.focus(); // what had it is gone, or cannot be used any more
  };
  const replied = () => say?.();
  const heard = ({ detail }) => detail.name === model.get("data").name && draw();
  const deaf = (event) => event.stopPropagation(); // the notebook's shortcuts: "d d" deletes a cell
  root.addEventListener("keydown", deaf);
  model.on("change:data", draw);
  model.on("change:replied", replied);
  document.addEventListener(LOCKED, heard);
  draw();
  return () => {
    model.off?.("change:data", draw);
    model.off?.("change:replied", replied);
    document.removeEventListener(LOCKED, heard);
    root.remove();
  };
}

export default { render };
