// Small charts of the last minutes. Each says in words what it draws.

import { h, span, svg } from './dom.js';

const WIDTH = 240;
const HEIGHT = 56;

/**
 * A chart of one or two lines over the samples; `of` gives a sample's value, or null where it has none. Durations are drawn
 * by their logarithm, so that a slow one leaves the others to be seen. The pointer shows the values of a moment.
 */
export function chart(title, lines, { samples, sample_ms }, slots, format) {
  const values = lines.map(({ of }) => samples.map(of));
  const most = Math.max(0, ...values.flat().filter((value) => value !== null));
  const least = Math.min(...values.flat().filter((value) => value > 0)) / 2;
  const isLog = format === duration && most > least;
  const height = (value) => (isLog ? Math.log(Math.max(value, least) / least) / Math.log(most / least) : value / (most || 1));
  const at = (i) => lines.map(({ name }, line) => `${name} ${format(values[line][i] ?? null)}`.trim()).join(', ');
  const last = samples.length - 1;
  const words = `${title}: now ${at(last)}; at most ${format(most)}`;
  const shown = h('b', {}, at(last));
  const mark = svg('line', { class: 'mark', y1: 0, y2: HEIGHT, visibility: 'hidden' });
  const picture = svg('svg', { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, preserveAspectRatio: 'none', role: 'img', 'aria-label': words },
    lines.map(({ kind }, i) => svg('path', { class: `line-of ${kind}`, d: path(values[i], height, slots) })), mark);
  picture.addEventListener('pointermove', ({ clientX }) => {
    const { left, width } = picture.getBoundingClientRect();
    const back = Math.round((1 - (clientX - left) / width) * (slots - 1));
    const i = last - back;
    if (i < 0 || i > last) return;
    for (const end of ['x1', 'x2']) mark.setAttribute(end, WIDTH - (back * WIDTH) / (slots - 1));
    mark.setAttribute('visibility', 'visible');
    shown.textContent = back === 0 ? at(i) : `${at(i)}, ${span(back * sample_ms)} ago`;
  });
  picture.addEventListener('pointerleave', () => {
    mark.setAttribute('visibility', 'hidden');
    shown.textContent = at(last);
  });
  return h('figure', { class: 'chart' },
    h('figcaption', {}, h('span', {}, title,
      lines.length > 1 && lines.map(({ name, kind }) => h('span', { class: `legend ${kind}` }, name))), shown),
    picture,
    h('p', { class: 'axis hint' },
      h('span', {}, `${span(slots * sample_ms)} ago`), h('span', {}, `${isLog ? 'log scale, ' : ''}to ${format(most)}`), h('span', {}, 'now')));
}

/** The newest sample is at the right edge, and a sample without a value is a gap. */
function path(values, height, slots) {
  let drawing = false;
  const points = values.map((value, i) => {
    if (value === null) {
      drawing = false;
      return '';
    }
    const x = WIDTH - ((values.length - 1 - i) * WIDTH) / (slots - 1);
    const y = HEIGHT - 2 - height(value) * (HEIGHT - 6);
    const step = drawing ? 'L' : 'M';
    drawing = true;
    // A lone point is drawn as a short stroke.
    return `${step}${x.toFixed(1)} ${y.toFixed(1)}${step === 'M' ? 'h.1' : ''}`;
  });
  return points.join('');
}

export function rate(value) {
  if (value === null) return '–';
  return `${value >= 10 ? Math.round(value).toLocaleString('en') : Number(value.toFixed(1))}/s`;
}

export function duration(us) {
  if (us === null || us === 0) return '–';
  if (us < 1000) return `${us} µs`;
  if (us < 1e6) return `${Number((us / 1000).toPrecision(2))} ms`;
  return `${Number((us / 1e6).toPrecision(2))} s`;
}
