// Single images: a list with filters, and a sheet with everything that is known of one image.
function outcome(run, at) {
  const samples = samplesOf(run);
  const status = content.statuses[samples.status[at]];
  return h('span', null, h('span', { class: `chip ${status}` }, status.replace('_', ' ')), samples.fragile[at] ? [' ', h('span', { class: 'chip fragile' }, 'fragile')] : null);
}

function imageLink(set, at) {
  const index = column(content.sets[set].index)[at];
  return h('button', { type: 'button', class: 'link', onclick: () => { location.hash = `image=${index}${set ? `&set=${set}` : ''}`; } }, String(index));
}

const pictureOf = (run, index) => content.pictures[run.key]?.[index];

// Original, amplified change and candidate of one image.
function strip([source, amplified], images, run, at) {
  const samples = samplesOf(run);
  const label = className(images, column(images.label)[at]);
  const alt = `Original, change times ${short(amplified)}, and what the attack made of image ${column(images.index)[at]}, class ${label}`;
  return h('figure', { class: 'strip' }, h('img', { src: source, alt, loading: 'lazy' }),
    h('figcaption', null, h('span', null, name(className(images, samples.clean[at]))), h('span', null, `change × ${short(amplified)}`), h('span', null, name(className(images, samples.adversarial[at])))));
}

function tile(set, run, at) {
  const images = content.sets[set];
  const samples = samplesOf(run);
  const stage = stageName(run, samples.stage[at]);
  const facts = [stage, samples.step[at] < 0 ? '' : `step ${count(samples.step[at])}`, plural(samples.passes[at], 'pass').replace('passs', 'passes')].filter(Boolean);
  return h('div', { class: 'tile card' },
    h('p', { class: 'tile-head' }, h('span', null, 'image ', imageLink(set, at)), outcome(run, at)),
    strip(pictureOf(run, column(images.index)[at]), images, run, at),
    h('p', { class: 'muted' }, facts.join(', ')));
}

function imagesSection() {
  const section = byId('images');
  if (!section) return;
  const state = { set: 0, run: 0, view: 'pictures', status: '', stage: '', label: '', low: null, high: null, sort: 'index', order: 1 };
  const heads = [['image', 'Image'], ['label', 'Class'], ['clean', 'Clean prediction'], ['status', 'Outcome'], ['adversarial', 'Under attack'], ['stage', 'Stage'], ['step', 'Step'], ['passes', 'Passes'], ['size', 'Size'], ['margin', 'Margin']]
    .map(([key, text], at) => h('th', { scope: 'col', 'data-key': key, 'data-kind': at === 0 || at > 5 ? 'number' : 'text' }, h('button', { type: 'button' }, text)));
  const list = growingTable('Images', heads);
  const tiles = h('div', { class: 'tiles' });
  const total = h('span', { class: 'count', role: 'status' });
  const images = () => content.sets[state.set];
  const run = () => images().runs[state.run];

  sortable(heads, (at, order) => { state.sort = heads[at].dataset.key; state.order = order; show(); });

  function show() {
    const samples = samplesOf(run());
    const labels = column(images().label);
    const found = [];
    for (let at = 0; at < images().n; at++) {
      if (state.status !== '' && content.statuses[samples.status[at]] !== state.status) continue;
      if (state.stage !== '' && String(samples.stage[at]) !== state.stage) continue;
      if (state.label !== '' && String(labels[at]) !== state.label) continue;
      if (state.low !== null && !(samples.margin[at] >= state.low)) continue;
      if (state.high !== null && !(samples.margin[at] <= state.high)) continue;
      found.push(at);
    }
    const by = { image: column(images().index), label: labels }[state.sort] ?? samples[state.sort];
    if (by) {
      const key = (at) => (Number.isNaN(by[at]) ? Infinity * state.order : by[at]); // what is missing comes last
      found.sort((one, two) => { const [a, b] = [key(one), key(two)]; return (a === b ? 0 : a < b ? -1 : 1) * state.order; });
    }
    total.textContent = `${plural(found.length, 'image')} of ${count(images().n)}`;
    const gallery = state.view === 'pictures' && run().key in content.pictures;
    [list.box.hidden, tiles.hidden] = [gallery, !gallery];
    if (gallery) {
      const indices = column(images().index);
      const pictured = found.filter((at) => pictureOf(run(), indices[at]));
      if (state.sort === 'index') pictured.sort((one, two) => (samples.status[two] === FOOLED) - (samples.status[one] === FOOLED));
      total.textContent += `, ${plural(pictured.length, 'picture')}`;
      tiles.replaceChildren(...pictured.map((at) => tile(state.set, run(), at)));
      return;
    }
    list.show(found, (at) => h('tr', null,
      h('td', { class: 'number' }, imageLink(state.set, at)),
      h('td', null, name(className(images(), labels[at]))),
      h('td', null, name(className(images(), samples.clean[at]))),
      h('td', null, outcome(run(), at)),
      h('td', null, name(className(images(), samples.adversarial[at]))),
      h('td', null, name(stageName(run(), samples.stage[at]))),
      h('td', { class: 'number' }, samples.step[at] < 0 ? '' : count(samples.step[at])),
      h('td', { class: 'number' }, count(samples.passes[at])),
      h('td', { class: 'number' }, short(samples.size[at])),
      h('td', { class: 'number' }, short(samples.margin[at]))));
  }

  const tools = h('div', { class: 'tools' });
  function fill() {
    const samples = samplesOf(run());
    const stages = [...new Set(samples.stage)].filter((stage) => stage >= 0).sort((a, b) => a - b);
    const labels = [...new Set(column(images().label))].sort((a, b) => a - b);
    Object.assign(state, { status: '', stage: '', label: '', low: null, high: null });
    const pick = (key) => (value) => { state[key] = value; show(); };
    const sets = choice('Images', content.sets.map((each, at) => [at, `${each.data} (${count(each.n)})`]), (value) => { state.set = Number(value); state.run = 0; fill(); });
    const runs = choice('Run', images().runs.map((each, at) => [at, runName(each)]), (value) => { state.run = Number(value); fill(); });
    const bound = (key, label) => {
      const input = h('input', { type: 'number', step: 'any', oninput: () => { state[key] = input.value === '' ? null : Number(input.value); show(); } });
      return labelled(label, input);
    };
    sets.select.value = state.set;
    runs.select.value = state.run;
    const views = [['pictures', 'Pictures'], ['list', 'List']].map(([key, text]) => h('button', { type: 'button', 'aria-pressed': String(state.view === key), onclick: (event) => {
      state.view = key;
      for (const each of views) each.setAttribute('aria-pressed', String(each === event.currentTarget));
      show();
    } }, text));
    tools.replaceChildren(
      content.sets.length > 1 ? sets.field : '',
      runs.field,
      choice('Outcome', [['', 'all'], ...content.statuses.map((each) => [each, each.replace('_', ' ')])], pick('status')).field,
      choice('Class', [['', 'all'], ...labels.map((label) => [label, className(images(), label)])], pick('label')).field,
      stages.length ? choice('Stage', [['', 'all'], ...stages.map((stage) => [stage, stageName(run(), stage)])], pick('stage')).field : '',
      bound('low', 'Margin from'), bound('high', 'to'),
      run().key in content.pictures ? h('div', { class: 'group', role: 'group', 'aria-label': 'View' }, views) : '', total,
    );
    show();
  }
  content.sets.forEach((each, set) => each.runs.forEach((one, at) => {
    if (one.key in content.pictures && !state.found) Object.assign(state, { set, run: at, found: true });
  }));
  section.querySelector('.filled').replaceChildren(tools, tiles, list.box);
  fill();
}

function imageSheet(set, index) {
  const images = content.sets[set];
  const at = placeOf(images, index);
  const dialog = byId('image');
  const close = h('button', { type: 'button', onclick: () => dialog.close() }, 'Close');
  if (at === undefined) {
    dialog.replaceChildren(h('div', { class: 'sheet' }, h('header', null, h('h3', { id: 'image-title' }, `No image ${index}`), close), h('p', null, 'It is not among the images ', name(images.data), '.')));
    return;
  }
  const indices = column(images.index);
  const go = (other) => { location.hash = `image=${indices[other]}${set ? `&set=${set}` : ''}`; };
  const before = h('button', { type: 'button', disabled: at === 0, onclick: () => go(at - 1) }, '← Previous');
  const after = h('button', { type: 'button', disabled: at === images.n - 1, onclick: () => go(at + 1) }, 'Next →');
  const label = column(images.label)[at];
  const rows = images.runs.map((run) => {
    const samples = samplesOf(run);
    return h('tr', null,
      h('th', { scope: 'row' }, name(run.model)), h('td', null, name(run.attack)), h('td', null, name(run.threat)),
      h('td', null, name(className(images, samples.clean[at]))), h('td', null, outcome(run, at)),
      h('td', null, name(className(images, samples.adversarial[at]))), h('td', null, name(stageName(run, samples.stage[at]))),
      h('td', { class: 'number' }, samples.step[at] < 0 ? '' : count(samples.step[at])),
      h('td', { class: 'number' }, count(samples.passes[at])), h('td', { class: 'number' }, short(samples.size[at])), h('td', { class: 'number' }, short(samples.margin[at])));
  });
  const heads = ['Model', 'Attack', 'Threat', 'Clean prediction', 'Outcome', 'Under attack', 'Stage', 'Step', 'Passes', 'Size', 'Margin'];
  dialog.replaceChildren(h('div', { class: 'sheet' },
    h('header', null, h('h3', { id: 'image-title' }, `Image ${index}`), before, after, close),
    h('p', { class: 'muted' }, name(images.data), ', class ', name(className(images, label))),
    h('div', { class: 'tiles' }, images.runs.filter((run) => pictureOf(run, index)).map((run) => h('div', { class: 'tile' }, h('p', null, name(runName(run))), strip(pictureOf(run, index), images, run, at)))),
    h('div', { class: 'scroll', tabindex: 0, role: 'region', 'aria-label': `Runs on image ${index}` },
      h('table', null, h('thead', null, h('tr', null, heads.map((head, place) => h('th', { scope: 'col', 'data-kind': place > 6 ? 'number' : 'text' }, head)))), h('tbody', null, rows)))));
  dialog.onkeydown = (event) => {
    if (event.key === 'ArrowLeft' && at > 0) go(at - 1);
    if (event.key === 'ArrowRight' && at < images.n - 1) go(at + 1);
  };
}
