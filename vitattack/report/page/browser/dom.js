// Elements from values. Texts only ever become text nodes and attributes, so nothing in the data can become markup.
const SVG = 'http://www.w3.org/2000/svg';

function build(node, attributes, children) {
  for (const [name, value] of Object.entries(attributes ?? {})) {
    if (value === undefined || value === null || value === false) continue;
    if (name.startsWith('on')) node.addEventListener(name.slice(2), value);
    else node.setAttribute(name, value === true ? '' : value);
  }
  node.append(...children.flat(Infinity).filter((child) => child !== null && child !== undefined && child !== false));
  return node;
}

const h = (name, attributes, ...children) => build(document.createElement(name), attributes, children);
const s = (name, attributes, ...children) => build(document.createElementNS(SVG, name), attributes, children);
const byId = (id) => document.getElementById(id);
const name = (text) => h('bdi', null, text);

const percent = (share, digits = 1) => `${(100 * share).toFixed(digits)}\u00a0%`;
const count = (value) => Math.round(value).toLocaleString('en');
const plural = (n, word) => `${count(n)} ${word}${n === 1 ? '' : 's'}`;
const short = (value) => (value === null || Number.isNaN(value) ? '' : String(Number(value.toPrecision(3))));

let labels = 0;

function labelled(text, control) {
  control.id ||= `control-${labels++}`;
  return h('div', { class: 'field' }, h('label', { for: control.id }, text), control);
}

function choice(label, options, change) {
  const select = h('select', { onchange: () => change(select.value) }, options.map(([value, text]) => h('option', { value }, text)));
  return { select, field: labelled(label, select) };
}

// A column head that sorts; `sort` is called with the column and 1 or -1.
function sortable(heads, sort) {
  heads.forEach((head, at) => {
    const button = head.querySelector('button');
    if (!button) return;
    button.addEventListener('click', () => {
      const first = head.dataset.kind === 'number' ? 'descending' : 'ascending';
      const other = first === 'ascending' ? 'descending' : 'ascending';
      const order = head.getAttribute('aria-sort') === first ? other : first;
      heads.forEach((each) => each.removeAttribute('aria-sort'));
      head.setAttribute('aria-sort', order);
      sort(at, order === 'ascending' ? 1 : -1);
    });
  });
}

// A table that grows as it is scrolled: 50,000 rows are never in the page at once.
function growingTable(label, heads, chunk = 100) {
  const body = h('tbody');
  const table = h('table', null, h('thead', null, h('tr', null, heads)), body);
  const box = h('div', { class: 'scroll', tabindex: 0, role: 'region', 'aria-label': label }, table);
  let rows = [];
  let render = null;
  const grow = () => {
    const next = rows.slice(body.children.length, body.children.length + chunk);
    body.append(...[...next].map(render));
  };
  box.addEventListener('scroll', () => {
    if (box.scrollTop + box.clientHeight > box.scrollHeight - 600) grow();
  }, { passive: true });
  return {
    box,
    table,
    show(newRows, newRender) {
      [rows, render] = [newRows, newRender];
      body.replaceChildren();
      box.scrollTop = 0;
      grow();
      if (!rows.length) body.append(h('tr', null, h('td', { class: 'empty', colspan: heads.length }, 'No image fits these filters.')));
    },
  };
}
