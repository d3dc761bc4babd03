// The leaderboard: sorting and filtering of the rows that are in the page.
function board() {
  const table = byId('board');
  if (!table) return;
  const body = table.tBodies[0];
  const rows = [...body.rows];
  const heads = [...table.tHead.rows[0].cells];
  const several = rows.some((row) => row.className === 'worst');
  const state = { text: '', threat: '', view: several ? 'worst' : 'all' };
  const total = h('span', { class: 'count', role: 'status' });

  const wanted = (row) => {
    const kind = row.className;
    if (state.view === 'worst' && kind === 'attack') return false;
    if (state.view === 'attacks' && kind === 'worst') return false;
    if (state.threat && row.cells[1].dataset.v !== state.threat) return false;
    const words = [0, 1, 2, 4].map((at) => row.cells[at].dataset.v).join(' ').toLowerCase();
    return state.text.toLowerCase().split(/\s+/).every((word) => words.includes(word));
  };
  const show = () => {
    let shown = 0;
    for (const row of rows) {
      row.hidden = !wanted(row);
      shown += !row.hidden;
    }
    total.textContent = plural(shown, 'row');
  };
  const value = (row, at) => {
    const text = row.cells[at].dataset.v;
    return text === undefined ? null : Number.isNaN(Number(text)) || text === '' ? text : Number(text);
  };
  sortable(heads, (at, order) => {
    rows.sort((one, two) => {
      const [a, b] = [value(one, at), value(two, at)];
      if (a === null || b === null) return (a === null) - (b === null); // what is missing comes last
      return order * (typeof a === 'number' && typeof b === 'number' ? a - b : String(a).localeCompare(String(b), 'en', { numeric: true }));
    });
    body.append(...rows);
  });

  const search = h('input', { type: 'search', placeholder: 'model, attack, images', oninput: () => { state.text = search.value; show(); } });
  const threats = [...new Set(rows.map((row) => row.cells[1].dataset.v))];
  const threat = choice('Threat', [['', 'all'], ...threats.map((each) => [each, each])], (picked) => { state.threat = picked; show(); });
  const views = [['worst', 'Worst case'], ['attacks', 'Every attack'], ['all', 'Both']];
  const buttons = views.map(([key, text]) => h('button', {
    type: 'button', 'aria-pressed': String(key === state.view), onclick: () => {
      state.view = key;
      buttons.forEach((button, at) => button.setAttribute('aria-pressed', String(views[at][0] === key)));
      show();
    },
  }, text));
  byId('board-tools').append(
    labelled('Filter', search),
    threats.length > 1 ? threat.field : '',
    several ? h('div', { class: 'group', role: 'group', 'aria-label': 'Rows' }, buttons) : '',
    total,
  );
  // A column that says the same of every row, or nothing, is left out.
  heads.forEach((head, at) => {
    const values = new Set(rows.map((row) => row.cells[at].dataset.v));
    const idle = { same: values.size < 2, empty: values.size === 1 && values.has(undefined) }[head.dataset.hide];
    if (idle) for (const row of [table.tHead.rows[0], ...rows]) row.cells[at].hidden = true;
  });
  show();
}
