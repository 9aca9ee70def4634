// What evaluations found, as results.json has it, and two of them compared as `llm-envs eval --compare` does.

const MOST_PASS_PLOTS = 6;
const tasksOf = (run) => index.runs[run].results.tasks.map((task) => ({run, task}));
const largestK = (task) => Math.max(...Object.keys(task.pass_at).map(Number));

const isKnown = (value) => value !== null && value !== undefined;
const span = ([low, high], format) => isKnown(low) && isKnown(high) ? `${format(low)} to ${format(high)}` : 'no interval';

// A value with its interval below it; the bootstrap's interval is in the cell's title.
function measured(found, format) {
  if (!found || !isKnown(found.value)) return el('td', {class: 'right'}, '–');
  return el('td', {class: 'right', title: `bootstrap: ${span(found.bootstrap, format)}; ${count(found.n_problems, 'problem')}`},
    format(found.value), el('span', {class: 'interval soft'}, span(found.interval, format)));
}

// Heads from `right[0]` to before `right[1]` stand to the right, as the numbers below them.
function wideTable(label, head, lines, right = [2, 99]) {
  return el('div', {class: 'wide', tabindex: 0, role: 'region', 'aria-label': label}, el('table', {},
    el('caption', {class: 'hidden'}, label),
    el('thead', {}, el('tr', {}, head.map((name, place) => el('th', {scope: 'col', class: place >= right[0] && place < right[1] && name !== 'task' && 'right'}, name)))),
    el('tbody', {}, lines.map(([first, ...rest]) => el('tr', {}, el('th', {scope: 'row', class: String(first).length > 28 ? 'long' : 'short'}, first), rest)))));
}

const cell = (value, isRight = true) => el('td', {class: isRight && 'right'}, value);
const longCell = (value) => el('td', {class: 'wrap'}, value);

function evaluationSection() {
  if (!evaluated.length) return null;
  const all = evaluated.flatMap(tasksOf), confidences = [...new Set(evaluated.map((run) => percent(index.runs[run].results.confidence)))];
  return [
    el('h3', {}, 'Evaluation'),
    el('p', {class: 'soft'}, `From results.json, with ${confidences.join(' and ')} intervals by problem. pass@k: at least one of k samples succeeds; pass^k: all of them do.`),
    scoresTable(all),
    el('details', {open: all.length <= 4}, el('summary', {}, 'Turns, tokens, seconds, and how much went wrong'), conductTable(all)),
    thresholdsTable(),
    el('details', {}, el('summary', {}, 'Reward components of the evaluation'), wideTable('Reward components of the evaluation', ['run', 'task', 'component', 'mean'],
      all.flatMap(({run, task}) => Object.entries(task.components).map(([name, found]) =>
        [index.runs[run].name, cell(task.name, false), cell(name, false), measured(found, number)])), [3, 4])),
    el('details', {}, el('summary', {}, 'Versions'), wideTable('Versions', ['run', 'scored with', 'played with'], evaluated.map((run) => {
      const {versions, played_with: played} = index.runs[run].results;
      const told = (found) => Object.entries(found).map(([name, version]) => `${name} ${version}`).join(', ') || 'not known';
      return [index.runs[run].name, longCell(told(versions)), longCell(told(played))];
    }), [9, 9])),
  ];
}

function scoresTable(all) {
  const many = all.some(({task}) => largestK(task) > 1);
  const head = ['run', 'task', 'success', ...(many ? ['k', 'pass@k', 'pass^k'] : []), 'reward', 'problems', 'episodes'];
  const lines = all.map(({run, task}) => {
    const k = largestK(task);
    return [index.runs[run].name, cell(task.name, false), measured(task.success, percent),
      ...(many ? [cell(k), measured(task.pass_at[k], percent), measured(task.pass_hat[k], percent)] : []),
      measured(task.reward, number), cell(task.n_problems.toLocaleString('en')), cell(task.n_episodes.toLocaleString('en'))];
  });
  const blank = () => Array.from({length: head.length - 3}, () => cell(''));
  for (const run of evaluated) {
    const {tasks, success, by_difficulty: levels} = index.runs[run].results;
    if (tasks.length < 2) continue;
    lines.push([index.runs[run].name, cell('mean of the tasks', false), measured(success, percent), ...blank()]);
    if (Object.keys(levels).length > 1) {
      lines.push(...Object.entries(levels).map(([level, found]) => [index.runs[run].name, cell(`mean of the tasks at ${level}`, false), measured(found, percent), ...blank()]));
    }
  }
  const successFirst = ([run, task, success, ...rest]) => [run, success, task, ...rest];
  return wideTable('Scores', successFirst(head), lines.map(successFirst), [1, 99]);
}

function conductTable(all) {
  const head = ['run', 'task', 'turns', 'tokens', 'seconds', 'malformed turns', 'truncated', 'errors', 'unscored', 'ended by'];
  return wideTable('Conduct', head, all.map(({run, task}) => [index.runs[run].name, cell(task.name, false), cell(number(task.turns)),
    cell(task.tokens ? number(task.sampled_tokens) : '–'), cell(number(task.seconds, 2)), cell(percent(task.malformed_turns)), cell(percent(task.truncated)),
    cell(percent(task.n_episodes ? task.n_errored / task.n_episodes : null)), cell(percent(task.n_episodes ? task.n_unscored / task.n_episodes : null)),
    longCell([...Object.entries(task.stop_reasons), ...Object.entries(task.errors)].map(([name, n]) => `${name} ${n.toLocaleString('en')}`).join(', '))]), [2, 9]);
}

const LIMITS = [['min_success', 'success', (task) => task.success.value, percent], ['min_mean_reward', 'reward', (task) => task.reward.value, number],
  ['min_pass_at_k', 'pass@k', (task) => task.pass_at[largestK(task)].value, percent], ['min_pass_hat_k', 'pass^k', (task) => task.pass_hat[largestK(task)].value, percent],
  ['max_errors', 'errors', (task) => task.n_errored / task.n_episodes, percent]];

// What was asked of the tasks, where the results say it: the name of a task -> limits.
function thresholdsTable() {
  const lines = evaluated.flatMap((run) => {
    const asked = index.runs[run].results.thresholds || {};
    return tasksOf(run).flatMap(({task}) => LIMITS.filter(([name]) => isKnown((asked[task.name] || {})[name])).map(([name, label, value, format]) => {
      const limit = asked[task.name][name], found = value(task), isGood = isKnown(found) && (name === 'max_errors' ? found <= limit : found >= limit);
      return [index.runs[run].name, cell(task.name, false), cell(`${label} ${name === 'max_errors' ? 'at most' : 'at least'} ${format(limit)}`, false), cell(format(found)),
        cell(el('span', {class: 'badge ' + (isGood ? 'success' : 'failure')}, isGood ? 'reached' : 'missed'), false)];
    }));
  });
  return lines.length ? [el('h4', {}, 'Thresholds'), wideTable('Thresholds', ['run', 'task', 'asked', 'measured', ''], lines, [3, 4])] : null;
}

// One plot a task: pass@k drawn through, pass^k dashed, over k.
function passPlots() {
  const all = evaluated.flatMap(tasksOf);
  const names = [...new Set(all.filter(({task}) => largestK(task) > 1).map(({task}) => task.name))];
  return names.slice(0, MOST_PASS_PLOTS).map((name) => passPlot(name, all.filter(({task}) => task.name === name)));
}

function passPlot(name, found) {
  const width = WIDTH, height = 190, left = 46, bottom = 36, top = 12, right = 12;
  const ks = [...new Set(found.flatMap(({task}) => Object.keys(task.pass_at).map(Number)))].sort((a, b) => a - b);
  const x = (k, run) => left + 10 + (ks.length > 1 ? ks.indexOf(k) / (ks.length - 1) : 0.5) * (width - left - right - 20) + (found.length > 1 ? (evaluated.indexOf(run) - (evaluated.length - 1) / 2) * 4 : 0);
  const y = (value) => top + (1 - value) * (height - top - bottom);
  const lines = found.flatMap(({run, task}) => [['pass@k', task.pass_at, ''], ['pass^k', task.pass_hat, ' dashed']].map(([label, values, dash]) =>
    ({run, label, dash, points: ks.filter((k) => values[k] && isKnown(values[k].value)).map((k) => ({k, ...values[k]}))}))).filter(({points}) => points.length);
  const about = lines.map(({run, label, points}) => `${index.runs[run].name}, ${label}: ` + points.map(({k, value, interval}) => `${percent(value)} (${span(interval, percent)}) at k=${k}`).join(', '));
  return plot(`pass@k and pass^k: ${name}`, about.join('; '), width, height,
    [0, 0.5, 1].map((tick) => [svg('path', {class: 'grid', d: `M${left} ${y(tick)}H${width - right}`}), svg('text', {x: left - 6, y: y(tick) + 4, class: 'tick end'}, percent(tick))]),
    ks.map((k) => svg('text', {x: left + 10 + (ks.length > 1 ? ks.indexOf(k) / (ks.length - 1) : 0.5) * (width - left - right - 20), y: height - 19, class: 'tick middle'}, k)),
    svg('text', {x: (left + width - right) / 2, y: height - 3, class: 'tick middle'}, 'k; drawn through: pass@k, dashed: pass^k'),
    lines.map(({run, dash, points}) => [
      svg('path', {class: palette(run) + ' line' + dash, d: points.map(({k, value}, place) => `${place ? 'L' : 'M'}${x(k, run).toFixed(1)} ${y(value).toFixed(1)}`).join('')}),
      points.map(({k, value, interval: [low, high]}) => [
        isKnown(low) && svg('path', {class: palette(run) + ' line thin', d: `M${x(k, run)} ${y(Math.max(0, low))}V${y(Math.min(1, high))}`}),
        svg('circle', {cx: x(k, run), cy: y(value), r: 3.5, class: palette(run)}, svg('title', {}, `${index.runs[run].name}: ${percent(value)} (${percent(low)} to ${percent(high)})`))])]));
}

// Compared as an evaluation compares: `this` is the second run. A pair is kept one way round, and turned where the other is asked for.
function evaluationComparison(one, other) {
  const pair = index.evaluations.find(({runs}) => runs.includes(one) && runs.includes(other));
  if (!pair) return null;
  const head = el('h3', {}, 'Their evaluations');
  if (pair.refused) return [head, el('p', {class: 'notes'}, `results.json of the two cannot be compared: ${pair.refused}`)];
  const {tasks, success, settings, confidence} = pair.found, isTurned = pair.runs[0] !== one;
  const turn = (interval) => isTurned ? [...interval].reverse().map((end) => isKnown(end) ? -end : null) : interval;
  const sides = ({this: mine, that}) => isTurned ? [mine, that] : [that, mine];
  const points = (value) => (value > 0 ? '+' : '') + (100 * value).toFixed(1) + '%';
  const change = ({value, interval, bootstrap}, format) => isKnown(value)
    ? el('td', {class: 'right', title: `bootstrap: ${span(turn(bootstrap), format)}`}, format(isTurned ? -value : value), el('span', {class: 'interval soft'}, span(turn(interval), format)))
    : el('td', {class: 'right'}, '–');
  const swap = (a, b) => isTurned ? [b, a] : [a, b];
  const names = [index.runs[one].name, index.runs[other].name];
  const lines = tasks.map((task) => {
    const [wins, losses] = swap(task.wins, task.losses), [mine, theirs] = swap(task.only_this, task.only_that);
    return [task.name, ...sides(task.success).map((value) => cell(percent(value))), change(task.success, points), cell(number(task.p_value, 2)), change(task.reward, signed),
      cell(`${wins} / ${task.ties} / ${losses}`), cell(`${task.both} / ${mine} / ${theirs} / ${task.neither}`), cell(task.n_problems), cell(task.left_out)];
  });
  if (tasks.length > 1) lines.push(['mean of the tasks', ...sides(success).map((value) => cell(percent(value))), change(success, points), ...Array.from({length: 6}, () => cell(''))]);
  const differing = Object.entries(settings);
  return [head,
    el('p', {class: 'soft'}, `As llm-envs eval --compare tells it: ${names[1]} less ${names[0]}, paired by problem, ${percent(confidence)} intervals; p is the sign test’s.`),
    wideTable('Evaluations compared', ['task', ...names, 'change of success', 'p', 'change of reward', 'better / equal / worse', 'solved by both / second only / first only / neither', 'problems', 'left out'], lines, [1, 99]),
    differing.length ? el('details', {}, el('summary', {}, `Set otherwise: ${differing.map(([name]) => name).join(', ')}`), wideTable('Settings that differ', ['setting', ...names],
      differing.map(([name, [mine, that]]) => [name, ...swap(that, mine).map((value) => cell(value === null ? 'not set' : JSON.stringify(value), false))]), [9, 9])) : null];
}
