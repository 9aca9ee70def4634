// Members of a group side by side, and two runs on the same problems.

const MOST_LISTED = 60;  // problems in which two runs differ
const MOST_BESIDE = 24;  // conversations drawn beside each other

const membersOf = (episode) => everyEpisode.filter((other) => columns.group[other] === columns.group[episode]);
const sameProblem = (episode) => everyEpisode.filter((other) => columns.problem[other] === columns.problem[episode]);

function groupStrip(episode) {
  const members = membersOf(episode).sort((a, b) => columns.member[a] - columns.member[b]), all = isOfMany ? sameProblem(episode) : members;
  const isElsewhere = all.some((other) => columns.run[other] !== columns.run[episode]);
  if (members.length < 2 && !isElsewhere) return null;
  return el('nav', {class: 'group', 'aria-label': 'Group'},
    members.length > 1 && [el('span', {}, `Group of ${members.length}:`), members.map((member) =>
      link('episode/' + member, `${columns.member[member]} ${outcomeMark(member)} ${number(columns.reward[member])}`,
        {'aria-current': member === episode ? 'true' : null, 'aria-label': `member ${columns.member[member]}, ${outcomeName(member)}, reward ${number(columns.reward[member])}`})),
    link('group/' + episode, 'Side by side')],
    isElsewhere && link('problem/' + episode, 'Same problem in all runs'));
}

const outcomeMark = (episode) => ['✓', '✗', '!', '?'][columns.outcome[episode]];

// How many messages, up to the first that the model wrote, are the same in all conversations.
function sharedBeginning(members) {
  const all = members.map((member) => details(member).m);
  if (all.length < 2 || all.some((m) => !m)) return 0;
  let n = 0;
  const same = (message) => message && message[0] !== 'assistant' && JSON.stringify(message) === JSON.stringify(all[0][n]);
  while (all.every((m) => same(m[n]))) n += 1;
  return n;
}

function besideView(episode, found, title) {
  current = episode;
  const members = [...found].sort((a, b) => columns.run[a] - columns.run[b] || columns.member[a] - columns.member[b] || a - b);
  const drawn = members.slice(0, MOST_BESIDE), isMixed = new Set(members.map((member) => columns.run[member])).size > 1;
  const scored = members.map((member) => columns.reward[member]).filter((reward) => reward !== null);
  const skip = sharedBeginning(drawn);
  const isStacked = isMixed && new Set(members.map((member) => columns.run[member])).size < members.length;  // a run has several
  const card = (member, level) => {
    const whole = (isMixed ? runName(member) + ' · ' : '') + 'member ' + columns.member[member];
    const name = isStacked ? 'member ' + columns.member[member] : whole;
    return el('article', {'aria-label': whole}, episodeHead(member, level, name), link('episode/' + member, 'Open', {'aria-label': 'Open ' + whole}),
      chat(member, {start: skip, label: 'Conversation of ' + whole}));
  };
  return [
    el('nav', {class: 'steps', 'aria-label': 'Episodes'}, link('episodes', '← All episodes'), link('episode/' + episode, 'The episode')),
    el('h2', {}, title),
    el('p', {class: 'soft'}, [envName(episode), settingsOf(episode), `seed ${columns.seed[episode]}`, count(members.length, 'episode'),
      scored.length && `mean reward ${number(mean(scored))}`, drawn.length < members.length && `the first ${MOST_BESIDE} are drawn`].filter(Boolean).join(' · ')),
    skip ? el('section', {'aria-label': 'The beginning that all share'}, chat(episode, {stop: skip, label: 'The beginning that all share'})) : null,
    isStacked ? [...groupBy(drawn, (member) => columns.run[member])].map(([run, mine]) => [
      el('h3', {}, index.runs[run].name), el('div', {class: 'beside'}, mine.map((member) => card(member, 'h4')))])
      : el('div', {class: 'beside'}, drawn.map((member) => card(member, 'h3'))),
  ];
}

let pair = [];  // runs that are compared

function compareView() {
  if (pair.length < 2) pair = playedRuns.length > 1 ? playedRuns.slice(0, 2) : evaluated.slice(0, 2);
  const choice = (side) => el('label', {}, side ? 'with' : 'Compare', el('select', {
    onchange: (event) => { pair[side] = Number(event.target.value); route(); }},
    [...new Set([...playedRuns, ...evaluated])].map((place) => el('option', {value: place, selected: pair[side] === place}, index.runs[place].name))));
  return [el('h2', {}, 'Compare'), el('form', {class: 'filters', onsubmit: (event) => event.preventDefault()}, choice(0), choice(1)),
    pair[0] === pair[1] ? el('p', {class: 'notes'}, 'Choose two different runs.') : comparison(pair[0], pair[1])];
}

// Problem -> [episodes of one run, of the other], where both have scored ones.
function pairs(one, other) {
  const out = [];
  for (const members of groupBy(everyEpisode.filter((episode) => columns.reward[episode] !== null), (episode) => columns.problem[episode]).values()) {
    const sides = [one, other].map((run) => members.filter((episode) => columns.run[episode] === run));
    if (sides[0].length && sides[1].length) out.push(sides);
  }
  return out;
}

const successOf = (episodes) => mean(episodes.map((episode) => columns.outcome[episode] === 0 ? 1 : 0));
const rewardOf = (episodes) => mean(episodes.map((episode) => columns.reward[episode]));

// [mean, low, high] of the second run less the first, whichever way round they were compared.
function differenceOf(one, other, what) {
  const found = index.comparisons.find(({runs}) => runs.includes(one) && runs.includes(other));
  const [mean, low, high] = found[what];
  return found.runs[0] === one ? [mean, low, high] : [-mean, high === null ? null : -high, low === null ? null : -low];
}

function comparison(one, other) {
  const both = index.comparisons.some(({runs}) => runs.includes(one) && runs.includes(other)) ? pairs(one, other) : [];
  const [nameA, nameB] = [index.runs[one].name, index.runs[other].name];
  if (!both.length) return [el('p', {class: 'notes'}, `${nameA} and ${nameB} have no problem in common: play the same seeds to compare.`), evaluationComparison(one, other)];
  const rows = both.map(([a, b]) => ({a, b, success: successOf(b) - successOf(a), reward: rewardOf(b) - rewardOf(a)}));
  const howMany = (test) => rows.filter(test).length;
  const says = (what, format) => {
    const [mean, low, high] = differenceOf(one, other, what);
    return format(mean) + (low === null ? '' : ` (${format(low)} to ${format(high)})`);
  };
  const {p} = index.comparisons.find(({runs}) => runs.includes(one) && runs.includes(other));
  const points = (value) => (value > 0 ? '+' : '') + (100 * value).toFixed(1);
  rows.sort((x, y) => x.success - y.success || x.reward - y.reward);
  const listed = rows.filter((row) => row.success || row.reward);
  const shift = (value, format) => el('td', {class: 'right ' + (value > 0 ? 'good' : value < 0 ? 'bad' : '')}, value ? format(value) : '0');
  return [
    el('p', {}, `${count(rows.length, 'problem')} in common, each counted once. Success of ${nameB} less that of ${nameA}: `,
      el('b', {id: 'difference'}, says('success', points)), ' points; reward: ', el('b', {}, says('reward', signed)), `. Intervals: 95%; sign test of success: p = ${number(p, 2)}.`),
    el('div', {class: 'plots'}, successAgainst(rows, nameA, nameB),
      el('figure', {class: 'plot'}, el('figcaption', {}, 'Who does better on a problem'), el('table', {class: 'wins'}, el('caption', {class: 'hidden'}, 'Problems by the two runs’ success rates'),
        el('thead', {}, el('tr', {}, [`${nameB} better`, 'equal', `${nameA} better`].map((name) => el('th', {scope: 'col'}, name)))),
        el('tbody', {}, el('tr', {}, [howMany((row) => row.success > 0), howMany((row) => row.success === 0), howMany((row) => row.success < 0)].map((n) => el('td', {}, n.toLocaleString('en')))))))),
    evaluationComparison(one, other),
    el('h3', {}, `Where they differ: ${count(listed.length, 'problem')}`),
    listed.length ? el('div', {class: 'wide', tabindex: 0, role: 'region', 'aria-label': 'Where they differ'}, el('table', {class: 'episodes'},
      el('caption', {class: 'soft'}, listed.length > MOST_LISTED ? `The ${MOST_LISTED} with the largest differences` : 'Those that got worse first'),
      el('thead', {}, el('tr', {}, [['Problem'], ['Begins with'], [nameA, 1], ['reward', 1], [nameB, 1], ['reward', 1], ['success', 1], ['reward', 1]].map(([name, isRight], place) =>
        el('th', {scope: 'col', class: isRight && 'right'}, place > 5 ? 'change of ' + name : name)))),
      el('tbody', {}, (listed.length > MOST_LISTED ? [...listed.slice(0, MOST_LISTED / 2), ...listed.slice(-MOST_LISTED / 2)] : listed).map(({a, b, success, reward}) => el('tr', {
        onclick: (event) => { if (!event.target.closest('a')) location.hash = 'problem/' + a[0]; }},
        el('th', {scope: 'row', class: envName(a[0]).length > 28 ? 'long' : 'short'}, link('problem/' + a[0], `${envName(a[0])} · ${columns.seed[a[0]]}`)), el('td', {class: 'begins'}, beginsWith(a[0])),
        [a, b].map((side) => [el('td', {class: 'right'}, percent(successOf(side))), el('td', {class: 'right'}, number(rewardOf(side)))]),
        shift(success, points), shift(reward, signed)))))) : null,
  ];
}

// Success against success, a circle for each pair of rates; its area is the number of problems.
function successAgainst(rows, nameA, nameB) {
  const width = WIDTH, left = 92, top = 20, side = 210;
  const spots = groupBy(rows, ({a, b}) => successOf(a) + '/' + successOf(b));
  const most = Math.max(...[...spots.values()].map((spot) => spot.length));
  const at = (value) => [left + value * side, top + (1 - value) * side];
  return plot('Success against success', [...spots.values()].map((spot) =>
    `${percent(successOf(spot[0].a))} against ${percent(successOf(spot[0].b))}: ${count(spot.length, 'problem')}`).slice(0, 12).join('; '), width, top + side + 46,
    svg('rect', {x: left, y: top, width: side, height: side, class: 'track'}),
    svg('path', {class: 'grid', d: `M${left} ${top + side}L${left + side} ${top}`}),
    [...spots.values()].map((spot) => svg('circle', {cx: at(successOf(spot[0].a))[0], cy: at(successOf(spot[0].b))[1],
      r: 3 + 15 * Math.sqrt(spot.length / most), class: 'series s0 see-through'}, svg('title', {}, count(spot.length, 'problem')))),
    [0, 0.5, 1].map((tick) => [svg('text', {x: at(tick)[0], y: top + side + 24, class: 'tick middle'}, percent(tick)),
      svg('text', {x: left - 22, y: at(tick)[1] + 4, class: 'tick end'}, percent(tick))]),
    svg('text', {x: left + side / 2, y: top + side + 41, class: 'tick middle'}, shortened(nameA)),
    svg('text', {x: 20, y: top + side / 2, class: 'tick middle', transform: `rotate(-90 20 ${top + side / 2})`}, shortened(nameB)));
}
