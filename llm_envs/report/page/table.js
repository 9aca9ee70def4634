// The table of episodes: filters, order and search decide `shown`; a page of it is in the document.

const PAGE = 100;
const view = {search: '', run: '', env: '', outcome: '', stop: '', settings: '', sort: '', descending: false, page: 0, parts: false};
let shown = [...everyEpisode];
let current = null;  // the episode that the keyboard is at

const HEADS = [
  ['env', 'Environment', envName], ['begins', 'Begins with', beginsWith], ['run', 'Run', runName], ['seed', 'Seed'], ['member', 'Member'],
  ['outcome', 'Outcome', outcomeName], ['reward', 'Reward'], ['turns', 'Turns'], ['tokens', 'Tokens'],
  ['stop', 'Ended', stopName], ['seconds', 'Seconds'], ['step', 'Step'], ['weights', 'Weights'],
];
const OF_TRAININGS = new Set(['step', 'weights']);  // shown if any episode has one

// A column for each part of a reward: what the task paid, and what a training learned from.
function partOf(episode, part) {
  const parts = columns.parts[episode];
  for (let place = 0; place < parts.length; place += 2) if (parts[place] === part) return parts[place + 1];
  return null;
}
const partHeads = () => view.parts ? index.names.part.map((name, part) => ['part-' + part, name, null, (episode) => partOf(episode, part)]) : [];
const valueOf = (key) => key.startsWith('part-') ? (episode) => partOf(episode, Number(key.slice(5))) : (episode) => columns[key][episode];
const isRight = (key) => RIGHT.has(key) || key.startsWith('part-');
const heads = () => [...HEADS.filter(([key]) => key === 'run' ? isOfMany : key === 'member' ? isGrouped : !OF_TRAININGS.has(key) || ofTraining[key]), ...partHeads()];
const RIGHT = new Set(['reward', 'turns', 'tokens', 'seconds', 'member', 'seed', 'step', 'weights']);
const TEXTS = new Set(['env', 'run', 'stop']);
const MINOR = new Set(['begins', 'seed', 'member', 'tokens', 'stop', 'seconds', 'run', 'weights']);  // on a phone below the environment, or left out

const filters = () => [
  ['run', 'Run', index.runs.map((run) => run.name), playedRuns], ['env', 'Environment', index.names.env],
  ['outcome', 'Outcome', outcomes], ['stop', 'Ended', index.names.stop], ['settings', 'Settings', index.names.settings],
];

// What an episode is found by. Conversations are parsed at the first search, not before.
const haystacks = [];
function haystack(episode) {
  if (isLive && !fetched.has(episode)) {  // only what the table has, until the episode has been opened
    return [envName(episode), runName(episode), 'seed:' + columns.seed[episode], outcomeName(episode), stopName(episode),
      settingsOf(episode), beginsWith(episode)].join('\n').toLowerCase();
  }
  if (haystacks[episode] === undefined) {
    const {m = [], group, e = []} = details(episode);
    const said = m.map(([, text]) => typeof text === 'number' ? block('shared').system[text] : text);
    haystacks[episode] = [envName(episode), runName(episode), 'seed:' + columns.seed[episode], 'group:' + group,
      outcomeName(episode), stopName(episode), settingsOf(episode), ...said, ...e].join('\n').toLowerCase();
  }
  return haystacks[episode];
}

function refilter() {
  const words = view.search.toLowerCase().split(/\s+/).filter(Boolean);
  const chosen = filters().map(([key]) => key).filter((key) => view[key] !== '');
  shown = everyEpisode.filter((episode) =>
    chosen.every((key) => columns[key][episode] === Number(view[key])) && words.every((word) => haystack(episode).includes(word)));
  if (view.sort) {
    const name = HEADS.find(([key]) => key === view.sort)?.[2];
    const value = name || valueOf(view.sort);
    const compare = (a, b) => {
      const [x, y] = [value(a), value(b)];
      if (x === y) return a - b;
      if (x === null || y === null) return x === null ? 1 : -1;  // without a value: last, either way
      const order = typeof x === 'string' || typeof y === 'string' ? String(x).localeCompare(String(y)) : x - y;
      return view.descending ? -order : order;
    };
    shown.sort(compare);
  } else if (isLive) shown.reverse();  // the newest first
  view.page = Math.min(view.page, Math.max(0, Math.ceil(shown.length / PAGE) - 1));
}

function tableView() {
  const search = el('input', {id: 'search', type: 'search', autocomplete: 'off', spellcheck: 'false', value: view.search,
    placeholder: 'words, seed:12, group:…', oninput: later(() => { view.search = search.value; view.page = 0; redraw(); })});
  const boxes = filters().map(([key, label, options, places]) => [key, label, options, places || [...options.keys()]])
    .filter(([, , , places]) => places.length > 1).map(([key, label, options, places]) =>
    el('label', {}, label, el('select', {id: 'filter-' + key,
      onchange: (event) => { view[key] = event.target.value; view.page = 0; redraw(); }},
      el('option', {value: ''}, 'all'),
      places.map((place) => el('option', {value: place, selected: view[key] === String(place)}, options[place] || '(none)')))));
  const found = [el('h2', {}, 'Episodes'),
    el('form', {class: 'filters', role: 'search', 'aria-label': 'Filter episodes', onsubmit: (event) => event.preventDefault()},
      el('label', {class: 'search'}, 'Search', search), boxes, index.names.part.length ? el('label', {class: 'inline'},
        el('input', {id: 'parts', type: 'checkbox', checked: view.parts, onchange: (event) => { view.parts = event.target.checked; redraw(); }}), 'reward by part') : null),
    el('p', {id: 'found', role: 'status', class: 'soft'}), el('div', {id: 'table'})];
  queueMicrotask(redraw);  // once it is in the document
  return found;
}

let timer = 0;
function later(act) {
  return () => { clearTimeout(timer); timer = setTimeout(act, 120); };
}

function redraw() {
  const place = document.getElementById('table');
  if (!place) return;
  refilter();
  drawPage(place);
  markScrolling();
}

function sayFound() {
  document.getElementById('found').textContent = count(shown.length, 'episode') +
    (shown.length < everyEpisode.length ? ` of ${everyEpisode.length.toLocaleString('en')}` : '');
}

function drawPage(place) {
  const pages = Math.max(1, Math.ceil(shown.length / PAGE)), start = view.page * PAGE;
  const rows = shown.slice(start, start + PAGE);
  sayFound();
  if (!rows.includes(current)) current = rows.length ? rows[0] : null;
  place.replaceChildren(
    el('div', {class: view.parts && 'wide', tabindex: view.parts && 0, role: view.parts && 'region', 'aria-label': view.parts && 'Episodes by part'}, el('table', {class: 'episodes'}, el('caption', {class: 'hidden'}, 'Episodes; a heading sorts by its column'),
      el('thead', {}, el('tr', {}, heads().map(([key, label]) => el('th', {scope: 'col', class: classOf(key),
        'aria-sort': view.sort === key ? (view.descending ? 'descending' : 'ascending') : null},
        el('button', {type: 'button', 'data-sort': key, onclick: () => sortBy(key)},
          label, el('span', {'aria-hidden': 'true'}, view.sort === key ? (view.descending ? ' ▼' : ' ▲') : '')))))),
      el('tbody', {}, rows.map(tableRow)))),
    ...(pages < 2 ? [] : [el('div', {class: 'pages'},
      el('button', {type: 'button', disabled: view.page === 0, onclick: () => turnPage(-1)}, 'Previous'),
      el('span', {}, `page ${view.page + 1} of ${pages}`),
      el('button', {type: 'button', disabled: view.page === pages - 1, onclick: () => turnPage(1)}, 'Next'))]));
}

const classOf = (key, text = '') => ['col-' + key, key === 'begins' && key, (MINOR.has(key) || key.startsWith('part-')) && 'minor', isRight(key) && 'right', TEXTS.has(key) && (text.length > 22 ? 'long' : 'short')].filter(Boolean).join(' ');

function tableRow(episode) {
  const cells = heads().map(([key, , name]) => {
    if (key === 'env') {
      const more = `${isOfMany ? runName(episode) + ' · ' : ''}seed ${columns.seed[episode]} · member ${columns.member[episode]}`;
      return el('th', {scope: 'row', class: classOf(key, envName(episode))}, link('episode/' + episode, envName(episode)),
        el('span', {class: 'on-a-phone'}, beginsWith(episode)), el('span', {class: 'on-a-phone soft'}, more));
    }
    if (key === 'outcome') return el('td', {class: classOf(key)}, badge(episode));
    const value = valueOf(key)(episode), text = name ? name(episode) : key === 'seed' ? String(value) : number(value, key === 'tokens' || OF_TRAININGS.has(key) ? 12 : 3);
    return el('td', {class: classOf(key, text)}, text);
  });
  return el('tr', {'data-episode': episode, class: episode === current ? 'current' : null,
    onclick: (event) => { if (!event.target.closest('a')) location.hash = 'episode/' + episode; }}, cells);
}

function sortBy(key) {
  const numeric = isRight(key) && key !== 'seed' && key !== 'member';
  if (view.sort !== key) [view.sort, view.descending] = [key, numeric];
  else view.descending = !view.descending;
  view.page = 0;
  redraw();
  document.querySelector(`[data-sort="${key}"]`).focus();
  announce(`sorted by ${heads().find(([name]) => name === key)[1]}, ${view.descending ? 'descending' : 'ascending'}`);
}

function turnPage(by) {
  view.page += by;
  current = null;
  drawPage(document.getElementById('table'));
  document.getElementById('table').scrollIntoView();
}

// j and k: the line below or above, over the page's end too.
function moveInTable(by) {
  const rows = shown.slice(view.page * PAGE, (view.page + 1) * PAGE);
  const focused = document.activeElement.closest && document.activeElement.closest('tr[data-episode]');
  let place = shown.indexOf(current);
  if (focused || by < 0) place += by;
  place = Math.max(0, Math.min(shown.length - 1, place));
  if (place < 0 || !shown.length) return;
  current = shown[place];
  const page = Math.floor(place / PAGE);
  if (page !== view.page || !rows.includes(current)) { view.page = page; drawPage(document.getElementById('table')); }
  document.querySelectorAll('tr.current').forEach((row) => row.classList.remove('current'));
  const row = document.querySelector(`tr[data-episode="${current}"]`);
  row.classList.add('current');
  row.querySelector('a').focus();
}
