// Plots as SVG. Each has a title and a sentence that says in words what is seen.

const WIDTH = 360;  // of a plot, in its own units: about the pixels that it has

const palette = (run) => 'series s' + (run % 6);

function ticks(low, high, most = 5) {
  if (!(high > low)) return [low];
  const raw = (high - low) / most;
  const power = 10 ** Math.floor(Math.log10(raw));
  const step = [1, 2, 5, 10].map((factor) => factor * power).find((size) => size >= raw * 0.999);
  const out = [];
  for (let tick = Math.ceil(low / step - 1e-9) * step; tick <= high + step * 1e-6; tick += step) {
    out.push(Math.abs(tick) < step * 1e-6 ? 0 : Number(tick.toPrecision(12)));
  }
  return out;
}

// A tick's whole number: rounded more, ticks that lie close would read the same.
function tickText(tick) {
  const text = String(tick);
  return text.length <= 7 ? text : tick.toExponential(Math.abs(tick) >= 1e-3 ? 3 : 1);
}

function plot(title, about, width, height, ...drawn) {
  const picture = svg('svg', {viewBox: `0 0 ${width} ${height}`, role: 'img', 'aria-label': title + ': ' + about}, drawn);
  return el('figure', {class: 'plot'}, el('figcaption', {}, title), picture);
}

const legend = (names) => names.length < 2 ? null : el('ul', {class: 'legend'},
  names.map((name, run) => el('li', {}, el('span', {class: palette(run) + ' swatch'}), name)));

// A label that would leave its plot is cut; the whole is in the bar's title and in the plot's description.
const shortened = (text) => text.length > 50 ? text.slice(0, 49) + '…' : text;

// rows: [{label, run, value, low, high, about}] with all values in [low, high] of the axis.
function barPlot(title, rows, {low = 0, high = 1, format = percent} = {}) {
  const width = WIDTH, left = 2, right = 62, line = 38;
  const x = (value) => left + (value - low) / (high - low || 1) * (width - left - right);
  const drawn = rows.map((row, place) => {
    const top = place * line;
    const from = x(Math.max(low, 0)), to = x(row.value);
    return svg('g', {},
      svg('title', {}, row.about),
      svg('text', {x: left, y: top + 13, class: 'label'}, shortened(row.label)),
      svg('rect', {x: left, y: top + 18, width: x(high) - left, height: 13, class: 'track'}),
      svg('rect', {x: Math.min(from, to), y: top + 18, width: Math.max(Math.abs(to - from), 1), height: 13, class: palette(row.run)}),
      row.low === undefined ? null : svg('path', {class: 'whisker',
        d: `M${x(row.low)} ${top + 24.5}H${x(row.high)}M${x(row.low)} ${top + 20}v9M${x(row.high)} ${top + 20}v9`}),
      svg('text', {x: width, y: top + 29, class: 'label end'}, format(row.value)));
  });
  return plot(title, rows.map((row) => row.about).join('; '), width, Math.max(rows.length * line, line), drawn);
}

// series: [{run, points: [[x, y], ...], name}], ascending in x; without a name, it is the run's.
function linePlot(title, series, xLabel = 'step') {
  const width = WIDTH, height = 190, left = 46, bottom = 36, top = 8, right = 12;
  const all = series.flatMap((one) => one.points);
  let [lowX, highX, lowY, highY] = [Infinity, -Infinity, Infinity, -Infinity];
  for (const [a, b] of all) {
    lowX = Math.min(lowX, a); highX = Math.max(highX, a); lowY = Math.min(lowY, b); highY = Math.max(highY, b);
  }
  if (lowY === highY) { const room = Math.abs(lowY) * 0.1 || 0.5; lowY -= room; highY += room; }
  const x = (value) => left + (highX > lowX ? (value - lowX) / (highX - lowX) : 0.5) * (width - left - right);
  const y = (value) => top + (highY - value) / (highY - lowY) * (height - top - bottom);
  const path = (points) => points.map(([a, b], place) => `${place ? 'L' : 'M'}${x(a).toFixed(1)} ${y(b).toFixed(1)}`).join('');
  const said = series.map(({run, points, name}) =>
    `${name || index.runs[run].name} from ${number(points[0][1])} to ${number(points[points.length - 1][1])} over ${count(points.length, 'point')}`);
  return plot(title, said.join('; '), width, height,
    ticks(lowY, highY).map((tick) => svg('g', {},
      svg('path', {class: 'grid', d: `M${left} ${y(tick)}H${width - right}`}),
      svg('text', {x: left - 6, y: y(tick) + 4, class: 'tick end'}, tickText(tick)))),
    ticks(lowX, highX).filter(Number.isInteger).map((tick) =>
      svg('text', {x: x(tick), y: height - 19, class: 'tick middle'}, tick.toLocaleString('en'))),
    svg('text', {x: (left + width - right) / 2, y: height - 3, class: 'tick middle'}, xLabel),
    series.map(({run, points}) => points.length === 1
      ? svg('circle', {cx: x(points[0][0]), cy: y(points[0][1]), r: 3, class: palette(run)})
      : [svg('path', {class: palette(run) + ' line' + (points.length > 8 ? ' faint' : ''), d: path(points)}),
         points.length > 8 ? svg('path', {class: palette(run) + ' line', d: path(smoothed(points))}) : null]));
}

// The bias-corrected exponential mean, as in report/plots.py.
function smoothed(points, weight = 0.8) {
  let average = 0, scale = 1;
  return points.map(([x, y]) => {
    average = weight * average + (1 - weight) * y;
    scale *= weight;
    return [x, average / (1 - scale)];
  });
}

// The width of a bar: a round number, and a whole one for whole numbers.
function barSize(low, high, isWhole) {
  const raw = (high - low) / 20;
  if (isWhole && raw <= 1) return 1;
  const power = 10 ** Math.floor(Math.log10(raw || 1));
  return [1, 2, 5, 10].map((factor) => factor * power).find((size) => size >= raw * 0.999 && (!isWhole || size >= 1)) || 1;
}

// samples: [{run, values}]; whole numbers in a small range have a bar each.
function histogram(title, samples) {
  const all = samples.flatMap((one) => one.values).sort((a, b) => a - b);
  if (!all.length) return null;
  const high = all[all.length - 1], size = barSize(all[0], high, all.every(Number.isInteger));
  const isEach = size === 1 && all.every(Number.isInteger);  // a bar is one number, and stands over it
  const low = Number((Math.floor(all[0] / size + 1e-9) * size).toPrecision(12));
  const bins = Math.max(1, Math.floor((high - low) / size + 1e-9) + 1);
  const width = WIDTH, height = 180, left = 46, bottom = 36, top = 8, right = 14;
  const shares = samples.map(({values}) => {
    const counts = new Array(bins).fill(0);
    for (const value of values) counts[Math.min(bins - 1, Math.floor((value - low) / size + 1e-9))] += 1;
    return counts;
  });
  const most = Math.max(...shares.flat());
  const cell = (width - left - right) / bins, bar = cell * 0.86 / samples.length;
  const y = (value) => top + (1 - value / most) * (height - top - bottom);
  const edge = (bin) => Number((low + bin * size).toPrecision(6));
  const said = samples.map(({run, values}) => values.length ? `${index.runs[run].name}: mean ${number(mean(values))}` : '');
  const range = (bin) => isEach ? number(edge(bin)) : `${edge(bin)} to ${edge(bin + 1)}`;
  return plot(title, `from ${number(all[0])} to ${number(high)}; ` + said.filter(Boolean).join('; '), width, height,
    ticks(0, most, 4).filter(Number.isInteger).map((tick) => svg('g', {},
      svg('path', {class: 'grid', d: `M${left} ${y(tick)}H${width - right}`}),
      svg('text', {x: left - 6, y: y(tick) + 4, class: 'tick end'}, tick.toLocaleString('en')))),
    shares.map((counts, place) => counts.map((n, bin) => n === 0 ? null : svg('rect', {
      x: left + bin * cell + cell * 0.07 + place * bar, width: bar, y: Math.min(y(n), height - bottom - 1), height: Math.max(height - bottom - y(n), 1),
      class: palette(samples[place].run)}, svg('title', {}, `${index.runs[samples[place].run].name}, ${range(bin)}: ${count(n, 'episode')}`)))),
    ticks(low, edge(bins - (isEach ? 1 : 0)), 5).filter((tick) => !isEach || Number.isInteger(tick)).map((tick) => svg('text', {
      x: left + ((tick - low) / size + (isEach ? 0.5 : 0)) * cell, y: height - 19, class: 'tick middle'}, tick.toLocaleString('en'))),
    svg('text', {x: (left + width - right) / 2, y: height - 3, class: 'tick middle'}, title.toLowerCase() + ' of an episode'));
}
