'use strict';
const data = JSON.parse(document.getElementById('data').textContent);
const kernels = data.report.kernels;
const $ = id => document.getElementById(id);
// Measured time of a kernel; undefined if the page has no measurements or the kernel was not timed.
const measured = i => data.measured?.[i] ?? undefined;
const us = v => v == null ? 'unknown' : (v >= 1000 ? (v / 1000).toFixed(2) + ' ms' : v.toFixed(2) + ' µs');
const size = b => (b >= 1e6 ? (b / 1e6).toFixed(2) + ' MB' : b >= 1e3 ? (b / 1e3).toFixed(1) + ' kB' : b + ' B');
const SVG = 'http://www.w3.org/2000/svg';
function el(tag, attributes = {}, ...children) {
  const e = tag.startsWith('svg:') ? document.createElementNS(SVG, tag.slice(4)) : document.createElement(tag);
  for (const [k, v] of Object.entries(attributes)) if (v !== undefined) e.setAttribute(k, v);
  e.append(...children);
  return e;
}
// Calls `run` on a click, and on Enter or Space when the element has the focus.
function act(e, run) {
  e.addEventListener('click', run);
  e.addEventListener('keydown', k => { if (k.key === 'Enter' || k.key === ' ') { k.preventDefault(); run(); } });
}

let chosen = -1, boxes = [], edges = [], drawn = [];
const open = new Set();
const ROW = 30, BOX = 24, LEFT = 74;

// Rows of the drawing: a repeated sequence of kernels is drawn once unless it is unfolded. `at[k]` is the row of kernel k.
function rows() {
  const list = [], at = [];
  for (let k = 0; k < kernels.length;) {
    const r = data.repeats.findIndex(r => r.start === k);
    if (r < 0) { at[k] = list.length; list.push({ kernel: k++ }); continue; }
    const { period, count } = data.repeats[r], first = list.length, shown = open.has(r) ? count : 1;
    for (let c = 0; c < count; c++)
      for (let i = 0; i < period; i++) {
        at[k + c * period + i] = first + (c < shown ? c * period : 0) + i;
        if (c < shown) list.push({ kernel: k + c * period + i });
      }
    Object.assign(list[first], { fold: r, end: list.length });
    k += period * count;
  }
  return { list, at };
}

function draw() {
  const { list, at } = rows(), width = 420, flow = $('flow');
  const svg = el('svg:svg', { width, height: list.length * ROW + 12, role: 'group', 'aria-label': 'kernels in launch order' });
  const y = row => row * ROW + 6 + BOX / 2, seen = new Set();
  for (const [a, b] of data.edges) {
    const [from, to] = [at[a], at[b]], name = from + ':' + to;
    if (from === to || seen.has(name)) continue;
    seen.add(name);
    // Adjacent rows are joined by a straight line, others by an arc on the left, which is wider the further they are apart.
    const far = Math.min(8 + 7 * Math.sqrt(Math.abs(to - from) - 1), LEFT - 12);
    const d = to === from + 1 ? `M${LEFT + 14} ${y(from) + BOX / 2}V${y(to) - BOX / 2}` : `M${LEFT} ${y(from)}C${LEFT - far * 1.3} ${y(from)} ${LEFT - far * 1.3} ${y(to)} ${LEFT} ${y(to)}`;
    svg.append(el('svg:path', { class: 'edge', d, 'data-from': from, 'data-to': to }));
  }
  const most = Math.max(...kernels.map((k, i) => Math.max(k.predicted_us ?? 0, measured(i) ?? 0)), 1e-9), name = data.measured ? 18 : 30;
  // Bars: predicted above, measured below, on one scale.
  const bar = (kind, top, time) => el('svg:rect', { class: kind, x: LEFT + 6, y: top, width: (width - LEFT - 70) * time / most, height: 2 });
  list.forEach(({ kernel, fold, end }, row) => {
    const k = kernels[kernel], top = row * ROW + 6;
    const m = measured(kernel), times = us(k.predicted_us) + (m === undefined ? '' : ' → ' + us(m));
    const g = el('svg:g', { class: 'kernel', role: 'button', tabindex: 0, 'data-kernel': kernel, 'aria-pressed': false, 'aria-label': `${k.name}, ${k.nodes.length} ops, ${times}` },
      el('svg:rect', { class: 'box', x: LEFT, y: top, width: width - LEFT - 62, height: BOX, rx: 5 }),
      el('svg:rect', { class: k.kind, x: LEFT, y: top, width: 5, height: BOX, rx: 2 }),
      bar(k.kind, top + BOX - (m === undefined ? 3 : 6), k.predicted_us ?? 0),
      ...(m === undefined ? [] : [bar('clock', top + BOX - 3, m)]),
      el('svg:text', { x: LEFT + 12, y: top + 14 }, k.name.length > name ? k.name.slice(0, name - 1) + '…' : k.name),
      el('svg:text', { class: 'us', x: width - 66, y: top + 14, 'text-anchor': 'end' }, times));
    act(g, () => choose(kernel));
    svg.append(g);
    if (fold === undefined) return;
    const r = data.repeats[fold], [x, bottom] = [width - 56, end * ROW + 2];
    const f = el('svg:g', { class: 'fold', role: 'button', tabindex: 0, 'data-fold': fold, 'aria-expanded': open.has(fold), 'aria-label': `${r.period} kernels repeated ${r.count} times` },
      el('svg:path', { d: `M${x - 4} ${top}h4V${bottom}h-4` }),
      el('svg:text', { x: x + 5, y: (top + bottom) / 2 + 4 }, open.has(fold) ? 'fold' : '× ' + r.count));
    act(f, () => { open.has(fold) ? open.delete(fold) : open.add(fold); draw(); flow.querySelector(`[data-fold="${fold}"]`).focus(); });
    svg.append(f);
  });
  flow.replaceChildren(svg);
  boxes = [...svg.querySelectorAll('.kernel')];
  edges = [...svg.querySelectorAll('.edge')];
  drawn = at;
  mark();
}

// Highlights the selected kernel and its edges in the drawing.
function mark() {
  const row = drawn[chosen];
  boxes.forEach((box, i) => { if ((box.getAttribute('aria-pressed') === 'true') !== (i === row)) box.setAttribute('aria-pressed', i === row); });
  for (const e of edges) e.classList.toggle('on', Number(e.dataset.from) === row || Number(e.dataset.to) === row);
}

// One bar for each kernel, as wide as its share of the time.
function timeline(id, times) {
  const total = times.reduce((a, b) => a + b, 0), svg = $(id);
  if (!svg || !(total > 0)) return;
  svg.setAttribute('viewBox', '0 0 1000 30');
  svg.setAttribute('preserveAspectRatio', 'none');
  let x = 0;
  svg.replaceChildren(...times.map((t, i) => {
    const width = 1000 * t / total, bar = el('svg:rect', { class: kernels[i].kind, x, y: 2, width, height: 26, 'data-kernel': i }, el('svg:title', {}, `${kernels[i].name}: ${us(t)}`));
    bar.addEventListener('click', () => choose(i));
    x += width;
    return bar;
  }));
}

function row(list, name, ...value) { if (value.length && value[0] !== '') list.append(el('dt', {}, name), el('dd', {}, ...value)); }
function link(name) {
  const i = kernels.findIndex(k => k.name === name);
  if (i < 0) return name;
  const b = el('button', { class: 'link', type: 'button' }, name);
  b.onclick = () => choose(i, true);
  return b;
}
function code(title, text) { return el('details', {}, el('summary', {}, title), el('pre', { tabindex: 0 }, text)); }

function detail(i) {
  const k = kernels[i], x = data.kernels[i], list = el('dl');
  const near = (at, end) => data.edges.filter(e => e[at] === i).flatMap((e, n) => (n ? [', '] : []).concat(link(kernels[e[end]].name)));
  row(list, 'kind', k.kind);
  row(list, 'schedule', k.schedule);
  row(list, 'predicted', `${us(k.predicted_us)}: ${size(k.bytes_read)} read, ${size(k.bytes_written)} written, ${(k.flops / 1e6).toFixed(2)} Mflop`);
  if (measured(i) !== undefined) row(list, 'measured', us(measured(i)));
  row(list, 'why', k.reason);
  row(list, 'ops', el('code', {}, k.nodes.join(' ')));
  row(list, 'rules', k.rules.join(', '));
  if (k.alternative) row(list, 'next best', `${k.alternative.what}: ${us(k.alternative.us)}`);
  for (const s of k.stops) row(list, 'not fused with', link(s.kernel), ': ' + s.why);
  row(list, 'reads from', ...near(1, 0));
  row(list, 'read by', ...near(0, 1));
  row(list, 'inputs', x.inputs.join(', '));
  row(list, 'outputs', x.outputs.join(', '));
  row(list, 'modules', k.modules.join(', '));
  row(list, 'source', k.lines.join(', '));
  const programs = x.programs.map(p => data.programs[p]);
  $('detail').replaceChildren(el('h2', { tabindex: -1 }, k.name), list,
    ...programs.flatMap((p, n) => [code('block program' + (n ? ' ' + (n + 1) : ''), p.block), ...(p.ptx ? [code('PTX' + (n ? ' ' + (n + 1) : ''), p.ptx)] : [])]));
}

function choose(i, scroll) {
  chosen = i;
  mark();
  for (const bar of document.querySelectorAll('.timeline rect')) bar.classList.toggle('on', Number(bar.dataset.kernel) === i);
  for (const tr of $('rows').rows) tr.classList.toggle('on', Number(tr.dataset.kernel) === i);
  detail(i);
  if (scroll) boxes[drawn[i]].scrollIntoView({ block: 'nearest' });
  history.replaceState(null, '', '#' + kernels[i].name);
}

function table() {
  const total = data.report.predicted_us || 1, n = (v, text) => el('td', { class: 'n', 'data-v': v }, text);
  $('rows').append(...kernels.map((k, i) => {
    const b = el('button', { class: 'link', type: 'button' }, k.name);
    b.onclick = () => choose(i, true);
    const tr = el('tr', { 'data-kernel': i }, el('td', { 'data-v': k.name }, b), el('td', { 'data-v': k.kind }, k.kind), n(k.nodes.length, String(k.nodes.length)), n(k.bytes_read + k.bytes_written, size(k.bytes_read + k.bytes_written)),
      n(k.flops, (k.flops / 1e6).toFixed(2)), n(k.predicted_us ?? 0, k.predicted_us?.toFixed(2) ?? 'unknown'), n((k.predicted_us ?? 0) / total, k.predicted_us == null ? 'unknown' : (100 * k.predicted_us / total).toFixed(1) + ' %'));
    if (data.measured) tr.append(n(measured(i) ?? -1, measured(i)?.toFixed(2) ?? '-'));
    return tr;
  }));
  for (const b of document.querySelectorAll('th button')) b.onclick = () => {
    const th = b.closest('th'), column = [...th.parentNode.children].indexOf(th), down = th.getAttribute('aria-sort') !== 'descending';
    for (const h of th.parentNode.children) h.removeAttribute('aria-sort');
    th.setAttribute('aria-sort', down ? 'descending' : 'ascending');
    const key = r => { const v = r.children[column].dataset.v; return th.classList.contains('n') ? Number(v) : v; };
    $('rows').append(...[...$('rows').rows].sort((a, b) => { const [x, y] = [key(a), key(b)]; return (x < y ? -1 : x > y ? 1 : 0) * (down ? -1 : 1); }));
  };
  $('find').oninput = () => {
    const words = $('find').value.toLowerCase().split(/\s+/);
    for (const tr of $('rows').rows) {
      const k = kernels[tr.dataset.kernel], text = [k.name, k.kind, ...k.nodes, ...k.modules, ...k.lines].join(' ').toLowerCase();
      tr.hidden = !words.every(w => text.includes(w));
    }
  };
}

// Arrow keys up and down move along the drawing.
$('flow').addEventListener('keydown', e => {
  if (e.key !== 'ArrowDown' && e.key !== 'ArrowUp') return;
  const box = boxes[boxes.indexOf(document.activeElement) + (e.key === 'ArrowDown' ? 1 : -1)];
  if (box) { e.preventDefault(); box.focus(); choose(Number(box.dataset.kernel)); }
});

table();
draw();
timeline('predicted', kernels.map(k => k.predicted_us ?? 0));
if (data.measured) timeline('measured', kernels.map((_, i) => measured(i) ?? 0));
const linked = kernels.findIndex(k => '#' + k.name === decodeURIComponent(location.hash));
if (kernels.length) choose(Math.max(linked, 0), true);
