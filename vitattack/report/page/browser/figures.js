// The figures section: one kind at a time, drawn when it is shown, redrawn when its width changes.
const KIND_NAMES = { accuracy: 'Accuracy', passes: 'Passes', distance: 'Smallest change', budget: 'Budgets', stages: 'Stages', referee: 'Referee', transfer: 'Transfer', spatial: 'Spatial', softmax: 'Softmax' };
const MOST_LINES = 10; // shown at first

function numbersOf(figure) {
  const share = (value) => (100 * value).toFixed(2);
  if (figure.shape === 'lines') {
    return [['line', figure.x, '%', '95 % from', 'to'], figure.lines.flatMap((line) => line.x.map((x, at) => [line.name, short(x), share(line.y[at]), line.low.length ? share(line.low[at]) : '', line.high.length ? share(line.high[at]) : '']))];
  }
  if (figure.shape === 'intervals') return [['name', '%', '95 % from', 'to'], figure.rows.map(([label, a, low, high]) => [label, share(a), share(low), share(high)])];
  if (figure.shape === 'stages') return [['stage', 'tried', 'broke', 'passes'], figure.rows.map((row) => row.map((value) => (value === null ? '' : String(value))))];
  return null;
}

function plot(figure) {
  const canvas = h('div', { class: 'canvas' });
  const parts = [h('h3', null, figure.title), h('p', { class: 'muted' }, name(figure.about)), canvas];
  const card = h('figure', { class: 'card plot' });
  let draw;
  if (figure.shape === 'lines') {
    const shown = new Set([...figure.lines.keys()].slice(0, MOST_LINES));
    const tip = h('div', { class: 'tip', hidden: true });
    let drawn = null;
    draw = (width) => {
      drawn = lines(figure, width, shown);
      canvas.replaceChildren(drawn.svg, tip);
    };
    canvas.addEventListener('pointermove', (event) => {
      const box = canvas.getBoundingClientRect();
      const at = event.clientX - box.left;
      const { left, right } = drawn.area;
      const part = Math.min(1, Math.max(0, (at - left) / (right - left)));
      const value = figure.log ? drawn.low * (drawn.high / drawn.low) ** part : drawn.low + part * (drawn.high - drawn.low);
      const rows = [...shown].map((each) => [figure.lines[each], valueAt(figure.lines[each], value, figure.steps)]).filter(([, y]) => y !== null);
      rows.sort((one, two) => two[1] - one[1]);
      tip.replaceChildren(h('b', null, figure.log ? `${count(value)} passes` : `eps ${short(value)}`), ...rows.slice(0, 8).map(([line, y]) => h('div', null, `${percent(y)}  `, name(line.name))));
      tip.hidden = false;
      tip.style.left = `${Math.min(at + 14, Math.max(0, box.width - tip.offsetWidth - 4))}px`;
      tip.style.top = `${Math.max(0, event.clientY - box.top - tip.offsetHeight - 10)}px`;
    });
    canvas.addEventListener('pointerleave', () => { tip.hidden = true; });
    parts.push(h('div', { class: 'legend' }, figure.lines.map((line, at) => {
      const button = h('button', { type: 'button', 'aria-pressed': String(shown.has(at)), onclick: () => {
        if (!shown.delete(at)) shown.add(at);
        button.setAttribute('aria-pressed', String(shown.has(at)));
        draw(canvas.clientWidth);
      } }, s('svg', { width: 22, height: 8, 'aria-hidden': 'true' }, s('line', { x1: 0, x2: 22, y1: 4, y2: 4, 'stroke-width': 2.5, ...lineStyle(at) })), name(line.name));
      return button;
    })));
  } else {
    const shapes = { intervals, stages, matrix, histograms };
    draw = (width) => canvas.replaceChildren(shapes[figure.shape](figure, width));
  }
  if (figure.note) parts.push(h('p', { class: 'muted' }, figure.note));
  const numbers = numbersOf(figure);
  if (numbers) {
    const [heads, rows] = numbers;
    const details = h('details', { ontoggle: () => {
      if (!details.open || details.children.length > 1) return;
      details.append(h('div', { class: 'scroll', tabindex: 0, role: 'region', 'aria-label': `Numbers of ${figure.title}, ${figure.about}` }, h('table', null, h('thead', null, h('tr', null, heads.map((head) => h('th', { scope: 'col' }, head)))),
        h('tbody', null, rows.map((row) => h('tr', null, row.map((cell) => h('td', null, cell))))))));
    } }, h('summary', null, 'Numbers'));
    parts.push(details);
  }
  card.append(...parts);
  new ResizeObserver(() => { if (canvas.clientWidth) draw(canvas.clientWidth); }).observe(card);
  return card;
}

function figuresSection() {
  const section = byId('figures');
  if (!section) return;
  const kinds = [...new Set(content.figures.map((figure) => figure.kind))];
  const plots = h('div', { class: 'plots' });
  const show = (kind) => {
    buttons.forEach((button, at) => button.setAttribute('aria-pressed', String(kinds[at] === kind)));
    plots.replaceChildren(...content.figures.filter((figure) => kind === 'every' || figure.kind === kind).map(plot));
  };
  const buttons = kinds.map((kind) => h('button', { type: 'button', onclick: () => show(kind) }, KIND_NAMES[kind] ?? kind));
  section.querySelector('.filled').replaceChildren(h('div', { class: 'tools' }, h('div', { class: 'group', role: 'group', 'aria-label': 'Kind of figure' }, buttons)), plots);
  show(kinds[0]);
  let before = null;
  addEventListener('beforeprint', () => { before = kinds.find((_, at) => buttons[at].getAttribute('aria-pressed') === 'true'); show('every'); });
  addEventListener('afterprint', () => show(before ?? kinds[0]));
}
