// Two runs on the same images: the paired difference, its test, and the images on which they disagree.
const Z95 = 1.959963984540054;

// McNemar's exact test of `a` against `b` discordant pairs, from logarithms of factorials.
function mcnemar(a, b) {
  const n = a + b;
  const logs = [0];
  for (let k = 1; k <= n; k++) logs.push(logs[k - 1] + Math.log(k));
  let sum = 0;
  for (let k = 0; k <= Math.min(a, b); k++) sum += Math.exp(logs[n] - logs[k] - logs[n - k] - n * Math.LN2);
  return Math.min(1, 2 * sum);
}

function wilson(k, n) {
  if (!n) return [0, 1];
  const [p, z] = [k / n, Z95 * Z95];
  const centre = (p + z / (2 * n)) / (1 + z / n);
  const half = (Z95 / (1 + z / n)) * Math.sqrt((p * (1 - p)) / n + z / (4 * n * n));
  return [k ? Math.max(0, centre - half) : 0, k < n ? Math.min(1, centre + half) : 1];
}

// The second share minus the first, of the same samples, with Newcombe's interval (his method 10).
function pairedGap(both, onlyFirst, onlySecond, neither) {
  const n = both + onlyFirst + onlySecond + neither;
  const [one, two] = [both + onlyFirst, both + onlySecond];
  const [[low1, high1], [low2, high2]] = [wilson(one, n), wilson(two, n)];
  const [down1, up1, down2, up2] = [one / n - low1, high1 - one / n, two / n - low2, high2 - two / n];
  const margins = one * (n - one) * two * (n - two);
  const together = both * neither - onlyFirst * onlySecond;
  const phi = margins ? (together > 0 ? Math.max(together - n / 2, 0) : together) / Math.sqrt(margins) : 0;
  const difference = (onlySecond - onlyFirst) / n;
  const below = Math.sqrt(Math.max(0, down2 * down2 - 2 * phi * down2 * up1 + up1 * up1));
  const above = Math.sqrt(Math.max(0, up2 * up2 - 2 * phi * up2 * down1 + down1 * down1));
  return [difference, Math.max(-1, difference - below), Math.min(1, difference + above)];
}

// What can be compared: every run, and the worst case of every row with several.
function sides(images) {
  const found = images.runs.map((run) => ({ key: run.key, text: runName(run), runs: [run], passes: run.passes, seconds: run.seconds }));
  for (const row of images.rows) {
    if (row.runs.length < 2) continue;
    const runs = row.runs.map((at) => images.runs[at]);
    found.push({ key: `worst:${runs[0].key}`, text: `${row.model}, worst of ${runs.length}, ${row.threat}`, runs, passes: runs.reduce((sum, run) => sum + run.passes, 0), seconds: runs.reduce((sum, run) => sum + run.seconds, 0) });
  }
  return found;
}

const isRobust = (side, at) => side.runs.every((run) => samplesOf(run).status[at] === ROBUST);
// The run that shows best what happened to an image: the first that fooled it, else the first.
const teller = (side, at) => side.runs.find((run) => samplesOf(run).status[at] === FOOLED) ?? side.runs[0];

// What to compare at first: the two models that withstand most under one threat, or else the two strongest attacks on one.
function firstPair(images) {
  const all = sides(images);
  const place = (row) => all.findIndex((side) => side.key === (row.runs.length > 1 ? 'worst:' : '') + images.runs[row.runs[0]].key);
  const rows = [...images.rows].sort((a, b) => b.worst[0] - a.worst[0]);
  for (const row of rows) {
    const other = rows.find((each) => each !== row && each.threat === row.threat);
    if (other) return [place(row), place(other)];
  }
  const most = rows.reduce((best, row) => (row.runs.length > best.runs.length ? row : best));
  const strongest = [...most.runs].sort((a, b) => images.runs[a].robust[0] - images.runs[b].robust[0]);
  return strongest.length > 1 ? [strongest[1], strongest[0]] : [0, Math.min(1, all.length - 1)];
}

let compareRuns = () => {};

function compareSection() {
  const section = byId('compare');
  if (!section) return;
  const state = { set: 0, show: 'flipped' };
  const choose = (set) => { state.set = set; [state.one, state.two] = firstPair(content.sets[set]); };
  const facts = h('div', { class: 'facts' });
  const heads = [['Image', 'number'], ['Class', 'text'], ['Reference', 'text'], ['predicts', 'text'], ['Other', 'text'], ['predicts', 'text']].map(([text, kind]) => h('th', { scope: 'col', 'data-kind': kind }, text));
  const list = growingTable('Images compared', heads);
  const tools = h('div', { class: 'tools' });
  const total = h('span', { class: 'count', role: 'status' });

  function show() {
    const images = content.sets[state.set];
    const all = sides(images);
    const [one, two] = [all[state.one], all[state.two]];
    const cells = { both: [], first: [], second: [], neither: [] };
    for (let at = 0; at < images.n; at++) {
      const [a, b] = [isRobust(one, at), isRobust(two, at)];
      cells[a ? (b ? 'both' : 'first') : b ? 'second' : 'neither'].push(at);
    }
    const [both, first, second, neither] = [cells.both.length, cells.first.length, cells.second.length, cells.neither.length];
    const [difference, low, high] = pairedGap(both, first, second, neither);
    const p = mcnemar(first, second);
    const signed = (value) => `${value >= 0 ? '+' : '−'}${(100 * Math.abs(value)).toFixed(1)}`;
    const fact = (value, ...texts) => h('div', { class: 'fact' }, h('b', null, value), h('span', null, texts));
    facts.replaceChildren(
      fact(`${percent((both + first) / images.n)} and ${percent((both + second) / images.n)}`, 'robust: ', name(one.text), ', and ', name(two.text)),
      fact(`${signed(difference)} points`, `the other minus the reference, 95 % interval ${signed(low)} to ${signed(high)} (paired, Newcombe)${[...one.runs, ...two.runs].some((run) => run.random) ? '; outcomes by the majority of draws' : ''}`),
      fact(`${count(first)} and ${count(second)}`, 'images that only the reference, and only the other, withstands'),
      fact(p < 0.001 ? p.toExponential(1) : p.toFixed(3), `McNemar's exact p: ${p < 0.05 ? 'the two differ' : 'no difference is shown'}`),
      fact(`${count(one.passes)} and ${count(two.passes)}`, `passes per attacked image; ${count(one.seconds)} s and ${count(two.seconds)} s`),
    );
    const flipped = [...cells.first, ...cells.second];
    const shown = { flipped, first: cells.first, second: cells.second, all: [...flipped, ...cells.neither, ...cells.both] }[state.show];
    total.textContent = plural(shown.length, 'image');
    const labels = column(images.label);
    const told = (side, at) => {
      const run = teller(side, at);
      return [h('td', null, outcome(run, at)), h('td', null, name(className(images, samplesOf(run).adversarial[at])))];
    };
    list.show(shown, (at) => h('tr', null, h('td', { class: 'number' }, imageLink(state.set, at)), h('td', null, name(className(images, labels[at]))), told(one, at), told(two, at)));
  }

  function fill() {
    const all = sides(content.sets[state.set]);
    const options = all.map((side, at) => [at, side.text]);
    const sets = choice('Images', content.sets.map((each, at) => [at, `${each.data} (${count(each.n)})`]), (value) => { choose(Number(value)); fill(); });
    const one = choice('Reference', options, (value) => { state.one = Number(value); show(); });
    const two = choice('Other', options, (value) => { state.two = Number(value); show(); });
    const which = choice('Show', [['flipped', 'flipped'], ['first', 'only the reference withstands'], ['second', 'only the other withstands'], ['all', 'all, flipped first']], (value) => { state.show = value; show(); });
    sets.select.value = state.set;
    one.select.value = state.one;
    two.select.value = state.two;
    which.select.value = state.show;
    const swap = h('button', { type: 'button', onclick: () => { [state.one, state.two] = [state.two, state.one]; fill(); } }, 'Swap');
    tools.replaceChildren(content.sets.length > 1 ? sets.field : '', one.field, two.field, swap, which.field, total);
    show();
  }
  compareRuns = (keys) => {
    content.sets.forEach((images, set) => {
      const places = keys.map((key) => sides(images).findIndex((side) => side.key === key));
      if (places.length === 2 && places.every((place) => place >= 0)) {
        Object.assign(state, { set, one: places[0], two: places[1] });
        fill();
        section.scrollIntoView();
      }
    });
  };
  section.querySelector('.filled').replaceChildren(tools, facts, list.box);
  choose(0);
  fill();
}
