/* The what-if, joined as a block to labkit/show/view.mjs and controls.mjs: curves of all algorithms, and a map of who
 * is fastest. All numbers are those of tables.py beside this file; here is the one formula that they are for.
 */

const [LEFT, RIGHT, TOP, BOTTOM] = [66, 424, 30, 330]; // of a panel
const DASHES = ["", "7 4", "8 3 2 3", "2 3"];

/** Write seconds with three digits, as labkit.floor.words does. */
function seconds(s) {
  const [unit, size] = [["s", 1], ["ms", 1e-3], ["µs", 1e-6]].find(([, least]) => s >= 0.9995 * least) ?? ["ns", 1e-9];
  const value = s / size;
  return `${value >= 999.5 ? Math.round(value).toLocaleString("en-US") : Number(value.toPrecision(3))} ${unit}`;
}

/** Write bytes with four digits, as labkit.floor.words does. */
function bytes(size) {
  const [unit, many] = [["GiB", 2 ** 30], ["MiB", 2 ** 20], ["KiB", 2 ** 10]].find(([, n]) => size >= n) ?? ["B", 1];
  return `${Number((size / many).toPrecision(4))} ${unit}`;
}

/** Return functions of the controls' state `at`, the i-th number of ranks and the j-th of the fine sizes. */
function whatif(data) {
  const unpacked = [];
  const row = (nth) => {
    let sum = 0;
    return (unpacked[nth] ??= data.rows[nth].map((step) => 10 ** ((sum += step) / data.fineness)));
  };
  const way = ([latency, fill, ...slopes], over, i, j, least = 0) => {
    const moving = data.fine[j] * row(slopes[over])[i];
    return Math.max(row(latency)[i], least) + moving + 2 * Math.sqrt(row(fill)[i] * moving);
  };
  const op = (at) => data.ops[at.op];
  const cluster = (at) => data.clusters[at.cluster - 1];
  const table = (at) => cluster(at)?.ops[op(at)];
  return {
    cluster,
    names: (at) => (table(at)?.letters ?? data.flat[op(at)]).map(([name]) => name),
    letters(at, i, j) {
      if (table(at)) {
        return table(at).letters.map(([, each]) => Math.min(...each.map((one) => way(one, at.oversubscription, i, j))));
      }
      const [alpha, beta] = [data.alphas[at.alpha], data.betas[at.beta]];
      return data.flat[op(at)].map(([, piped, steps, serial]) => {
        const moving = serial[i] * data.fine[j] * beta;
        if (!piped) return steps[i] * alpha + moving;
        const [filling, each] = [steps[i] - 1, moving / steps[i]];
        const pieces = Math.max(1, Math.sqrt((filling * each) / alpha));
        return (filling + pieces) * (alpha + each / pieces);
      });
    },
    nccl(at, i, j) {
      if (!table(at)) return null;
      const { nccl, start } = table(at);
      const found = nccl.map(([name, one]) => [name, way(one, at.oversubscription, i, j, start[j])]);
      const [name, least] = found.reduce((best, one) => (one[1] < best[1] ? one : best));
      return [data.ranks[i] > cluster(at).node ? name.replace("NVLS,", "NVLSTree,") : name, least]; // as NCCL names it
    },
  };
}

const least = (values) => values.indexOf(Math.min(...values));
const path = (points) => points.map(([x, y], k) => `${k ? "L" : "M"}${x.toFixed(1)} ${y.toFixed(1)}`).join("");
const text = (x, y, words, look = "") => `<text x="${x}" y="${y}" ${look}>${escaped(words)}</text>`;
const badge = ([letter, fill, ink], x, y) =>
  `<circle cx="${x}" cy="${y}" r="8.5" fill="${fill}" stroke="currentColor"/>` +
  text(x, y + 3.8, letter, `class="labkit-letter" style="fill:${ink}"`);
const line = (marks, k, d) =>
  `<path class="labkit-curve" style="stroke:${marks[k][3]}" stroke-dasharray="${DASHES[k % 4]}" d="${d}"/>`;
const svg = (label, body) => `<svg viewBox="0 0 432 372" role="img" aria-label="${escaped(label)}">${body}</svg>`;
const sized = (nth) => 2 * nth; // where a doubling is among the fine sizes

/** Draw what both panels have: a headline, and sizes below. */
function framed(data, x, headline, lines) {
  const texts = data.controls.find(({ name }) => name === "nbytes").options;
  const ticks = texts.flatMap((words, k) => {
    if (k % 6) return [];
    const at = x(sized(k)).toFixed(1);
    const [look, end] = lines ? ["labkit-grid", `V${TOP}`] : ["labkit-tick", "v5"];
    const tick = `<path class="${look}" d="M${at} ${BOTTOM}${end}"/>`;
    return [tick + text(at, BOTTOM + 18, words, 'class="labkit-faint"')];
  });
  const below = text((LEFT + RIGHT) / 2, BOTTOM + 38, "size S (logarithmic)", 'class="labkit-faint"');
  return text(LEFT, TOP - 12, headline) + ticks.join("") + below;
}

function curves(data, { letters, nccl }, at, here) {
  const last = data.fine.length - 1;
  const x = (j) => LEFT + ((RIGHT - LEFT) * j) / last;
  const each = data.fine.map((_, j) => letters(at, at.n, j));
  const extra = here.nccl && data.fine.map((_, j) => nccl(at, at.n, j)[1]);
  const shown = [...each.flat(), ...(extra ?? [])].filter((t) => t > 0).map(Math.log10);
  const [low, high] = [Math.floor(Math.min(...shown)), Math.ceil(Math.max(...shown))];
  const y = (t) => BOTTOM - ((BOTTOM - TOP) * (Math.log10(t) - low)) / (high - low);
  const body = [framed(data, x, `seconds on ${here.ranks} ranks`, true)];
  const step = Math.max(1, Math.floor((high - low) / 6));
  for (let k = low; k <= high; k += step) {
    const level = y(10 ** k).toFixed(1);
    body.push(`<path class="labkit-grid" d="M${LEFT} ${level}H${RIGHT}"/>`);
    body.push(text(LEFT - 6, Number(level) + 4, seconds(10 ** k), 'class="labkit-faint labkit-end"'));
  }
  const marked = x(sized(at.nbytes)).toFixed(1);
  body.push(`<path class="labkit-here" d="M${marked} ${TOP}V${BOTTOM}"/>`);
  const order = here.names.map((_, k) => k).sort((a, b) => each[last][b] - each[last][a]);
  const places = here.names.map((_, k) => Math.floor(((2 * order.indexOf(k) + 1) * (last + 1)) / (2 * order.length)));
  for (const k of here.names.keys()) {
    body.push(line(data.marks, k, path(each.map((times, j) => [x(j), y(times[k])]))));
  }
  if (extra) body.push(`<path class="labkit-nccl" d="${path(extra.map((t, j) => [x(j), y(t)]))}"/>`);
  for (const [k, j] of places.entries()) body.push(badge(data.marks[k], x(j), y(each[j][k])));
  return svg(`Seconds over sizes on ${here.ranks} ranks, a curve for each of ${here.names.join("; ")}`, body.join(""));
}

/** Return a box for each run of cells in a row of which `inside` holds. */
function stripes(rows, columns, inside, box) {
  let found = "";
  for (let i = 0; i < rows; i += 1) {
    for (let j = 0, from = 0; j < columns; j = from) {
      for (from = j; from < columns && inside(i, from); from += 1);
      if (from > j) found += box(i, j, from);
      else from = j + 1;
    }
  }
  return found;
}

/** Find where letters go: of each piece of a region that is no speck, the cell that lies deepest in it. */
function middles(rows, columns, inside) {
  const open = new Set();
  for (let i = 0; i < rows; i += 1) for (let j = 0; j < columns; j += 1) if (inside(i, j)) open.add(i * columns + j);
  const whole = new Set(open);
  const around = (cell) => [
    cell - columns,
    cell + columns,
    ...(cell % columns ? [cell - 1] : []),
    ...((cell + 1) % columns ? [cell + 1] : []),
  ];
  const found = [];
  for (const first of whole) {
    if (!open.delete(first)) continue;
    const piece = [first];
    for (const cell of piece) for (const next of around(cell)) if (open.delete(next)) piece.push(next);
    if (piece.length < 6) continue;
    let layer = piece;
    for (let left = new Set(piece); ; left = new Set(layer)) {
      const deeper = layer.filter((cell) => around(cell).length === 4 && around(cell).every((next) => left.has(next)));
      if (!deeper.length) break;
      layer = deeper;
    }
    const mean = (of) => layer.reduce((sum, cell) => sum + of(cell), 0) / layer.length;
    const [row, column] = [(cell) => Math.floor(cell / columns), (cell) => cell % columns];
    const [i, j] = [mean(row), mean(column)];
    const off = (cell) => Math.abs(row(cell) - i) + Math.abs(column(cell) - j);
    const middle = layer.reduce((best, cell) => (off(cell) < off(best) ? cell : best));
    found.push([row(middle), column(middle)]);
  }
  return found;
}

function map(data, { letters, nccl }, at, here) {
  const [rows, columns] = [data.map.length, data.fine.length];
  const [high, wide] = [(BOTTOM - TOP) / rows, (RIGHT - LEFT) / columns];
  const each = data.map.map((i) => data.fine.map((_, j) => letters(at, i, j)));
  const fastest = each.map((row) => row.map(least));
  const ahead = here.nccl && each.map((row, k) => row.map((t, j) => nccl(at, data.map[k], j)[1] < Math.min(...t)));
  const box = (i, from, to) => {
    const [x, y, width] = [LEFT + from * wide, BOTTOM - (i + 1) * high, (to - from) * wide].map((v) => v.toFixed(1));
    return `M${x} ${y}h${width}v${high.toFixed(1)}h-${width}z`;
  };
  const x = (j) => LEFT + ((RIGHT - LEFT) * j) / (columns - 1);
  const who = here.nccl ? "the fastest letter" : "the fastest";
  const body = [framed(data, x, `${who}, by size and ranks (powers of two)`, false)];
  for (let i = 0; i < rows; i += 2) {
    const label = data.ranks[data.map[i]].toLocaleString("en-US");
    body.push(text(LEFT - 6, (BOTTOM - (i + 0.5) * high + 4).toFixed(1), label, 'class="labkit-faint labkit-end"'));
  }
  for (const k of here.names.keys()) {
    const area = stripes(rows, columns, (i, j) => fastest[i][j] === k, box);
    if (area) body.push(`<path fill="${data.marks[k][1]}" stroke="${data.marks[k][1]}" stroke-width="1" d="${area}"/>`);
  }
  const hatch = ahead ? stripes(rows, columns, (i, j) => ahead[i][j], box) : "";
  if (hatch) body.push(`<path fill="url(#${here.hatch})" d="${hatch}"/>`);
  for (const k of here.names.keys()) {
    for (const [i, j] of middles(rows, columns, (a, b) => fastest[a][b] === k)) {
      body.push(badge(data.marks[k], LEFT + (j + 0.5) * wide, BOTTOM - (i + 0.5) * high));
    }
  }
  const row = Math.log2(data.ranks[at.n]) - Math.log2(data.ranks[data.map[0]]); // the map's rows are doublings
  const [cx, cy] = [x(sized(at.nbytes)), BOTTOM - (Math.min(Math.max(row, 0), rows - 1) + 0.5) * high];
  for (const look of ["halo", "cross"]) body.push(`<circle class="labkit-${look}" cx="${cx}" cy="${cy}" r="9"/>`);
  body.push(`<path class="labkit-cross" d="M${cx - 13} ${cy}h26M${cx} ${cy - 13}v26"/>`);
  const regions = here.names.filter((_, k) => fastest.some((line) => line.includes(k)));
  return [svg(`Map of ${who} over sizes and ranks: ${regions.join("; ")}`, body.join("")), Boolean(hatch)];
}

const swatch = (body) => `<svg viewBox="0 0 52 18" width="52" height="18" aria-hidden="true">${body}</svg>`;

/** Draw all of it for a state of the controls; HTML. */
function drawn(data, told, at, hatch) {
  const option = (name) => data.controls.find((each) => each.name === name).options[at[name]];
  const names = told.names(at);
  const times = told.letters(at, at.n, sized(at.nbytes));
  const nccl = told.nccl(at, at.n, sized(at.nbytes));
  const best = least(times);
  const here = { names, nccl, ranks: option("n"), hatch };
  const [mapped, hatched] = map(data, told, at, here);
  const carried = data.alphas[at.alpha] / data.betas[at.beta];
  const links =
    told.cluster(at)?.says[at.oversubscription] ??
    `every pair of ranks: α = ${option("alpha")}, 1/β = ${option("beta")}; ` +
      `in the time of α a link carries ${bytes(carried)}`;
  const legend = names.map((name, k) => {
    const words = escaped(`${name}: ${seconds(times[k])}`);
    const mark = k === best ? `<b>  ◀ the fastest${nccl ? " letter" : ""}</b>` : "";
    const sample = swatch(line(data.marks, k, "M0 9H52") + badge(data.marks[k], 26, 9));
    return `<li>${sample}<span>${words}${mark}</span></li>`;
  });
  if (nccl) {
    const words = `NCCL, estimated: ${seconds(nccl[1])} (${nccl[0]})`;
    legend.push(`<li>${swatch('<path class="labkit-nccl" d="M0 9H52"/>')}<span>${words}</span></li>`);
  }
  if (hatched) {
    const box = `<rect width="52" height="18" fill="url(#${hatch}-page)"/>`;
    legend.push(`<li>${swatch(box)}<span>hatched: NCCL, estimated, is faster than every letter</span></li>`);
  }
  const pattern = (id, paint) =>
    `<pattern id="${id}" patternUnits="userSpaceOnUse" width="7" height="7" patternTransform="rotate(45)">` +
    `<path d="M0 0H7" stroke="${paint}" stroke-width="2.4"/></pattern>`;
  const patterns = pattern(hatch, "#000") + pattern(`${hatch}-page`, "currentColor");
  const title = `${option("op")} of ${option("nbytes")} on ${option("n")} ranks`;
  return {
    said: `<b>${escaped(title)}</b>: ${escaped(names[best])} is the fastest${nccl ? " letter" : ""}`,
    picture:
      `<svg width="0" height="0" aria-hidden="true" class="labkit-patterns">${patterns}</svg>` +
      `<p class="labkit-quiet">${escaped(links)}</p>` +
      `<div class="labkit-panels">${curves(data, told, at, here)}${mapped}</div>` +
      `<ul class="labkit-legend">${legend.join("")}</ul>`,
  };
}

KINDS.whatif = (view) => {
  const data = view.model.get("data");
  const [told, hatch, said, picture] = [whatif(data), unique(), make("p", { role: "status" }), make("div")];
  const kind = controls(view, (at, rows) => {
    for (const name of ["alpha", "beta"]) rows[name].row.hidden = at.cluster > 0;
    rows.oversubscription.row.hidden = at.cluster === 0;
    const shown = drawn(data, told, at, hatch);
    [said.innerHTML, picture.innerHTML] = [shown.said, shown.picture];
  });
  view.root.append(said, picture);
  return kind;
};
