// The first view: what was played, how it went, and the plots.

const MOST_CURVES = 24;  // further metrics of a training are folded away

// Drawn before all others; of each line the first that was logged.
const FIRST_CURVES = [['reward', 'rewards/margins', 'eval_reward'], ['env/success', 'success', 'rewards/accuracies', 'mean_token_accuracy'],
  ['loss'], ['entropy'], ['kl', 'policy/kl', 'objective/kl'], ['completions/mean_length', 'tokens/sampled'], ['env/turns', 'env/tool_calls'],
  ['grad_norm'], ['eval_loss']];
const CURVES_SHOWN = 6;
const PARTS_OF_TIME = ['time/sampling', 'time/environment', 'time/training', 'time/waiting'];  // in one plot

function summaryView() {
  const names = index.runs.map((run) => run.name);
  return [
    el('h2', {}, 'Summary'),
    index.notes.length ? el('section', {class: 'notes', 'aria-label': 'Notes'},
      el('ul', {}, index.notes.map((note) => el('li', {}, note)))) : null,
    isLive && liveSection(),
    nEpisodes && !playedRuns.every((run) => index.runs[run].results) ? numbersTable() : null,
    legend(names),
    evaluationSection(),
    curves(),
    nEpisodes || evaluated.length ? el('h3', {}, 'Episodes') : null,
    el('div', {class: 'plots'}, nEpisodes ? [successPlot(), passPlots(), stopPlot(), componentPlot(),
      distribution('Reward', columns.reward), distribution('Turns', columns.turns),
      distribution('Sampled tokens', columns.tokens)] : passPlots()),
    el('h3', {}, 'Settings'),
    index.runs.map((run) => el('details', {}, el('summary', {}, run.name), el('p', {class: 'soft'}, run.path),
      el('pre', {}, run.settings))),
  ];
}

function numbersTable() {
  const head = ['run', 'success (95%)', 'task', 'mean reward', 'episodes', 'problems', 'without a score'];
  const parts = [...index.summary].sort((a, b) => a.task - b.task || a.run - b.run);
  const lines = parts.map((part) => [
    index.runs[part.run].name,
    part.scored ? `${percent(part.success)} (${percent(part.low)} to ${percent(part.high)})` : '–', index.tasks[part.task],
    part.scored ? number(part.reward) : '–',
    ...[part.episodes, part.problems, part.episodes - part.scored].map((n) => n.toLocaleString('en'))]);
  return [el('p', {class: 'soft'}, 'Episodes of one problem are alike: the intervals are by problem.'),
    el('div', {class: 'wide', tabindex: 0, role: 'region', 'aria-label': 'Numbers'}, el('table', {},
    el('thead', {}, el('tr', {}, head.map((name, place) => el('th', {scope: 'col', class: place > 0 && name !== 'task' && 'right'}, name)))),
    el('tbody', {}, lines.map(([run, ...rest]) => el('tr', {}, el('th', {scope: 'row'}, run),
      rest.map((value, place) => el('td', {class: place !== 1 && 'right'}, value)))))))];
}

const labelOf = (part, text) => (isOfMany ? index.runs[part.run].name + ' · ' : '') + text;

function successPlot() {
  const rows = index.summary.filter((part) => part.scored)
    .sort((a, b) => a.task - b.task || a.run - b.run)
    .map((part) => ({label: labelOf(part, index.tasks[part.task]), run: part.run, value: part.success, low: part.low,
      high: part.high, about: `${index.runs[part.run].name}, ${index.tasks[part.task]}: ${percent(part.success)} ` +
        `(${percent(part.low)} to ${percent(part.high)}) of ${count(part.scored, 'episode')} of ${count(part.problems, 'problem')}`}));
  return rows.length ? barPlot('Success by environment', rows) : null;
}

function stopPlot() {
  const rows = [];
  for (const [stop, name] of index.names.stop.entries()) {
    for (const [run, {name: runText}] of index.runs.entries()) {
      const mine = everyEpisode.filter((episode) => columns.run[episode] === run);
      const n = mine.filter((episode) => columns.stop[episode] === stop).length;
      if (n) rows.push({label: labelOf({run}, name), run, value: n / mine.length,
        about: `${runText}: ${name} in ${count(n, 'episode')} of ${mine.length.toLocaleString('en')}`});
    }
  }
  return rows.length ? barPlot('Why episodes ended', rows) : null;
}

function componentPlot() {
  const rows = index.summary.flatMap((part) => Object.entries(part.components || {}).map(([name, value]) => ({
    label: labelOf(part, index.tasks.length > 1 ? `${index.tasks[part.task]} · ${name}` : name), run: part.run, value,
    about: `${index.runs[part.run].name}, ${index.tasks[part.task]}: ${name} ${number(value)} an episode`})));
  if (!rows.length) return null;
  const values = rows.map((row) => row.value);
  return barPlot('Reward components, mean of an episode, before weights', rows,
    {low: Math.min(0, ...values), high: Math.max(0, ...values) || 1, format: signed});
}

function distribution(title, column) {
  const samples = index.runs.map((_, run) => ({run, values: everyEpisode
    .filter((episode) => columns.run[episode] === run && column[episode] !== null).map((episode) => column[episode])}));
  if (title === 'Sampled tokens' && samples.every(({values}) => values.every((value) => value === 0))) return null;
  return histogram(title, samples.filter(({values}) => values.length));
}

// The shares of a run's time, from one generation to the next.
const utilisation = (run) => linePlot(`Shares of the time, ${run.name}`, PARTS_OF_TIME
  .map((key, place) => ({run: place, name: key.slice(5), points: run.curves[key] || []})).filter(({points}) => points.length));

function curves() {
  const keys = [...new Set(index.runs.flatMap((run) => Object.keys(run.curves)))];
  if (!keys.length) return null;
  const found = FIRST_CURVES.map((names) => names.find((name) => keys.includes(name))).filter(Boolean);
  const used = index.runs.filter((run) => PARTS_OF_TIME.some((key) => run.curves[key]));
  const order = [...new Set([...found, ...keys])].filter((key) => !PARTS_OF_TIME.includes(key));
  const draw = (key) => linePlot(key, index.runs.map((run, place) => ({run: place, points: run.curves[key] || []}))
    .filter(({points}) => points.length));
  const rest = order.slice(CURVES_SHOWN);
  const more = el('details', {ontoggle: (event) => {
    const target = event.target.querySelector('.plots');
    if (event.target.open && !target.children.length) append(target, rest.slice(0, MOST_CURVES).map(draw));
    if (rest.length > MOST_CURVES) target.nextElementSibling.textContent = 'Not drawn: ' + rest.slice(MOST_CURVES).join(', ');
  }}, el('summary', {}, count(rest.length, 'more metric')), el('div', {class: 'plots'}), el('p', {class: 'soft'}));
  return [el('h3', {}, 'Training'), el('div', {class: 'plots'}, order.slice(0, CURVES_SHOWN).map(draw)),
    used.length ? [el('h3', {}, 'Utilisation'), legend(PARTS_OF_TIME.map((key) => key.slice(5))),
      el('div', {class: 'plots'}, used.map(utilisation))] : null, rest.length ? more : null];
}
