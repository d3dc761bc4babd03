// Drawings in SVG: each takes a figure of the content and a width, and returns an element.
const COLOURS = 8;
const DASHES = ['', '7 4', '2 3', '9 3 2 3'];
const lineStyle = (at) => ({ stroke: `var(--c${at % COLOURS})`, 'stroke-dasharray': DASHES[Math.floor(at / COLOURS) % DASHES.length] });

function ticks(low, high, logarithmic) {
  if (logarithmic) {
    const found = [];
    for (let power = Math.floor(Math.log10(low)); 10 ** power <= high * 1.001; power++) {
      for (const step of high / low > 500 ? [1] : [1, 2, 5]) {
        const value = step * 10 ** power;
        if (value >= low * 0.999 && value <= high * 1.001) found.push(value);
      }
    }
    return found;
  }
  const rough = (high - low) / 5 || 1;
  const base = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map((each) => each * base).find((each) => each >= rough);
  const found = [];
  for (let value = Math.ceil(low / step) * step; value <= high + step / 1e6; value += step) found.push(Number(value.toPrecision(12)));
  return found;
}

const scale = (low, high, from, to, logarithmic) => {
  const f = logarithmic ? Math.log10 : (value) => value;
  const span = f(high) - f(low) || 1;
  return (value) => from + ((f(value) - f(low)) / span) * (to - from);
};

function eps(value) {
  const steps = value * 255;
  return value > 0 && value < 1 && Math.abs(steps - Math.round(steps)) < 1e-3 ? `${Math.round(steps)}/255` : short(value);
}

function lines(figure, width, shown) {
  const [left, right, top, bottom] = [44, 12, 10, 42];
  const height = Math.round(Math.min(360, Math.max(230, width * 0.52)));
  const all = figure.lines.flatMap((line) => line.x);
  const low = figure.log ? Math.max(1, Math.min(...all)) : Math.min(0, ...all);
  const high = Math.max(...all, low * (figure.log ? 2 : 1));
  const x = scale(low, high, left, width - right, figure.log);
  const y = scale(0, 1, height - bottom, top);
  const budget = figure.kind === 'budget' || figure.kind === 'distance';
  const svg = s('svg', { viewBox: `0 0 ${width} ${height}`, width, height, role: 'img', 'aria-label': `${figure.title}, ${figure.about}` });
  for (const share of [0, 0.2, 0.4, 0.6, 0.8, 1]) {
    svg.append(s('line', { x1: left, x2: width - right, y1: y(share), y2: y(share), class: share ? 'grid' : 'axis' }),
      s('text', { x: left - 6, y: y(share) + 4, 'text-anchor': 'end' }, `${Math.round(100 * share)} %`));
  }
  const marks = budget ? [...new Set(figure.kind === 'budget' ? all : ticks(low, high, false))] : ticks(low, high, figure.log);
  let last = -99;
  for (const value of marks.sort((a, b) => a - b)) {
    svg.append(s('line', { x1: x(value), x2: x(value), y1: y(0), y2: y(0) + 4, class: 'axis' }));
    if (x(value) - last < 44) continue;
    last = x(value);
    svg.append(s('text', { x: last, y: height - bottom + 18, 'text-anchor': 'middle' }, budget ? eps(value) : count(value)));
  }
  svg.append(s('text', { x: (left + width - right) / 2, y: height - 6, 'text-anchor': 'middle' }, figure.x));
  figure.lines.forEach((line, at) => {
    if (!shown.has(at)) return;
    const style = lineStyle(at);
    if (line.low.length) {
      line.x.forEach((value, place) => svg.append(
        s('line', { x1: x(value), x2: x(value), y1: y(line.low[place]), y2: y(line.high[place]), stroke: style.stroke, 'stroke-width': 1.5 }),
        s('circle', { cx: x(value), cy: y(line.y[place]), r: 3.5, fill: style.stroke })));
    }
    const path = line.x.map((value, place) => {
      const [px, py] = [x(Math.max(value, low)).toFixed(1), y(line.y[place]).toFixed(1)];
      return !place ? `M${px} ${py}` : figure.steps ? `H${px}V${py}` : `L${px} ${py}`;
    }).join('');
    svg.append(s('path', { d: path, fill: 'none', 'stroke-width': 2, 'stroke-linejoin': 'round', ...style }));
  });
  return { svg, x, y, low, high, area: { left, right: width - right, top, bottom: height - bottom } };
}

function valueAt(line, at, steps) {
  let place = -1;
  while (place + 1 < line.x.length && line.x[place + 1] <= at) place++;
  if (place < 0) return null;
  if (steps || place + 1 === line.x.length) return line.y[place];
  const part = (at - line.x[place]) / (line.x[place + 1] - line.x[place]);
  return line.y[place] + part * (line.y[place + 1] - line.y[place]);
}

function intervals(figure, width) {
  const wide = width > 480;
  const [left, right, step] = wide ? [Math.min(240, width * 0.36), 64, 28] : [6, 64, 44];
  const height = figure.rows.length * step + 30;
  const x = scale(0, 1, left + 6, width - right);
  const svg = s('svg', { viewBox: `0 0 ${width} ${height}`, width, height, role: 'img', 'aria-label': `${figure.title}, ${figure.about}` });
  for (const share of [0, 0.25, 0.5, 0.75, 1]) {
    svg.append(s('line', { x1: x(share), x2: x(share), y1: 4, y2: height - 24, class: 'grid' }),
      s('text', { x: x(share), y: height - 6, 'text-anchor': 'middle' }, `${100 * share} %`));
  }
  figure.rows.forEach(([label, share, low, high], at) => {
    const y = at * step + (wide ? 18 : 30);
    const most = Math.floor((wide ? left - 6 : width - 12) / 6.4);
    const text = label.length > most ? `${label.slice(0, most - 1)}…` : label;
    svg.append(s('text', wide ? { x: left - 4, y: y + 4, 'text-anchor': 'end', class: 'name' } : { x: 6, y: y - 11, class: 'name' }, text, s('title', null, label)),
      s('line', { x1: x(low), x2: x(high), y1: y, y2: y, class: 'span' }),
      s('circle', { cx: x(share), cy: y, r: 4.5, class: 'point' }),
      s('text', { x: width - right + 12, y: y + 4 }, percent(share)));
  });
  return svg;
}

function stages(figure, width) {
  const [left, step] = [Math.min(170, width * 0.38), 40];
  const height = figure.rows.length * step + 8;
  const [most, dearest] = [Math.max(1, ...figure.rows.map((row) => row[2])), Math.max(1, ...figure.rows.map((row) => row[3] ?? 0))];
  const room = width - left - 110;
  const svg = s('svg', { viewBox: `0 0 ${width} ${height}`, width, height, role: 'img', 'aria-label': `${figure.title}, ${figure.about}` });
  figure.rows.forEach(([label, tried, broke, passes], at) => {
    const y = at * step + 6;
    const limit = Math.floor((left - 12) / 6.4);
    svg.append(s('text', { x: left - 8, y: y + 17, 'text-anchor': 'end' }, label.length > limit ? `${label.slice(0, limit - 1)}…` : label, s('title', null, label)),
      s('rect', { x: left, y, width: Math.max(1, (broke / most) * room), height: 13, rx: 3, fill: 'var(--c1)' }),
      s('text', { x: left + (broke / most) * room + 6, y: y + 11 }, tried === null ? count(broke) : `${count(broke)} of ${count(tried)}`));
    if (passes !== null) {
      svg.append(s('rect', { x: left, y: y + 15, width: Math.max(1, (passes / dearest) * room), height: 11, rx: 3, fill: 'var(--c0)' }),
        s('text', { x: left + (passes / dearest) * room + 6, y: y + 25 }, `${count(passes)} passes`));
    }
  });
  return svg;
}

function matrix(figure) {
  const values = figure.values.flat().filter((value) => value !== null);
  const [low, high] = figure.kind === 'transfer' ? [0, 1] : [0, Math.max(...values, 1)];
  const cells = figure.rows.map((row, at) => h('tr', null, h('th', { scope: 'row' }, name(row)), figure.columns.map((_, across) => {
    const value = figure.values[at][across];
    const cell = h('td', { class: 'number' }, figure.texts[at][across]);
    if (value !== null) {
      const strength = (value - low) / (high - low || 1);
      cell.style.backgroundColor = `rgba(var(--heat), ${(0.5 * strength).toFixed(3)})`;
    }
    return cell;
  })));
  const head = h('tr', null, h('th', { scope: 'col' }, `${figure.rowLabel} ↓ ${figure.columnLabel} →`), figure.columns.map((each) => h('th', { scope: 'col', class: 'number' }, name(each))));
  return h('div', { class: 'scroll', tabindex: 0, role: 'region', 'aria-label': `${figure.title}, ${figure.about}` }, h('table', null, h('thead', null, head), h('tbody', null, cells)));
}

function histograms(figure) {
  const edges = figure.edges;
  const bins = edges.length - 1;
  return h('div', { class: 'blocks' }, figure.blocks.map((block) => {
    const [width, height] = [180, 74];
    const x = scale(edges[0], edges[bins], 4, width - 4, true);
    const top = Math.max(1, ...block.counts);
    const svg = s('svg', { viewBox: `0 0 ${width} ${height + 16}`, width: '100%', role: 'img', 'aria-label': `${block.block}: ${block.verdict}` });
    block.counts.forEach((value, at) => svg.append(s('rect', { x: x(edges[at]), y: height - (value / top) * (height - 4), width: Math.max(1, x(edges[at + 1]) - x(edges[at]) - 0.3), height: (value / top) * (height - 4), fill: 'var(--c0)' })));
    for (const [gap, colour] of [[16.6, 'var(--c4)'], [87.3, 'var(--bad)']]) svg.append(s('line', { x1: x(gap), x2: x(gap), y1: 0, y2: height, stroke: colour, 'stroke-dasharray': '3 3' }));
    svg.append(s('line', { x1: 4, x2: width - 4, y1: height, y2: height, class: 'axis' }));
    for (const gap of [0.01, 1, 100, 1e4]) svg.append(s('text', { x: x(gap), y: height + 13, 'text-anchor': 'middle' }, gap >= 1e4 ? '10⁴' : String(gap)));
    return h('div', null, h('p', null, h('b', null, name(block.block)), ` ${block.verdict}`), svg);
  }));
}
