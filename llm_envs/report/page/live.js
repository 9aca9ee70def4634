// A page that follows runs: it asks the server that it came from for what is new, and draws what has changed.

const ASK_EVERY_MS = 1000;
const DRAW_EVERY_MS = 1500;  // the plots of a summary
const KEPT_DETAILS = 400;  // episodes that stay opened
const NEWEST = 10;
let known = {id: '', about: 0, summary: 0, rows: 0, points: 0, gone: 0, keys: []};
let statuses = [], isReading = false, drawingMs = 0, isConnected = true, drawnAt = 0, wantsDrawing = false;

const kinds = Object.keys(index.names);

// Forget all that a server had told that is no longer there.
function forget(id) {
  known = {id, about: 0, summary: 0, rows: 0, points: 0, gone: 0, keys: []};
  for (const column of Object.values(columns)) column.length = 0;
  for (const kind of kinds) index.names[kind].length = 0;
  fetched.clear();
  gone.clear();
  index.runs = [];
  statuses = [];
  haystacks.length = 0;
  blocks.set('shared', {system: [], tools: []});
  blocks.set('tokens', []);
}

const asked = () => new URLSearchParams({id: known.id, about: known.about, summary: known.summary, rows: known.rows, points: known.points,
  gone: known.gone, keys: known.keys.length, ...Object.fromEntries(kinds.map((kind) => [kind, index.names[kind].length]))});

// Take an answer; returns whether anything has changed.
function take(told) {
  if (told.id !== known.id) forget(told.id);  // to whom it does not know, it tells all from the start
  const names = Object.keys(columns);
  for (const row of told.rows) names.forEach((name, place) => columns[name].push(row[place]));
  for (const kind of kinds) index.names[kind].push(...told.names[kind]);
  told.gone.forEach((episode) => gone.add(episode));
  known.rows += told.rows.length;
  known.gone += told.gone.length;
  known.keys.push(...told.keys);
  if (told.runs) {
    const before = index.runs;
    index.runs = told.runs.map((run, place) => ({...run, curves: before[place]?.curves || {}}));
    known.about = told.about;
  }
  for (const [run, key, step, value] of told.points) addPoint(run, known.keys[key], step, value);
  known.points += told.points.length;
  if (told.summary) {
    known.summary = told.summary.version;
    Object.assign(index, {tasks: told.summary.tasks, summary: told.summary.summary, comparisons: told.summary.comparisons, evaluations: told.summary.evaluations});
  }
  index.notes = told.notes;
  isReading = told.reading;
  statuses = told.live;
  return told.rows.length + told.points.length + told.gone.length > 0 || told.runs !== undefined || told.summary !== undefined;
}

// A point of a curve, which stays ascending: a step that was logged twice counts as it was logged last.
function addPoint(run, key, step, value) {
  const {curves} = index.runs[run];
  if (!Object.hasOwn(curves, key)) curves[key] = [];
  const points = curves[key], last = points.length - 1;
  if (last < 0 || step > points[last][0]) { points.push([step, value]); return; }
  const place = points.findIndex(([other]) => other >= step);
  if (points[place][0] === step) points[place] = [step, value];
  else points.splice(place, 0, [step, value]);
}

// The server's answer; null without one.
async function answerOf(address) {
  try {
    const answer = await fetch(address, {cache: 'no-store'});
    return answer.ok ? await answer.json() : null;
  } catch {
    return null;
  }
}

let asking = 0;
async function ask() {
  clearTimeout(asking);
  const told = await answerOf('/feed?' + asked());
  isConnected = told !== null;
  const isMore = isConnected && take(told);
  if (isMore) derive();
  changed(isMore);
  clearTimeout(asking);
  asking = setTimeout(ask, told?.more ? 0 : document.hidden ? 10 * ASK_EVERY_MS : ASK_EVERY_MS);
}

// Draw what is seen again; the plots less often than the numbers, and never under someone's hands.
function changed(isMore) {
  const [name] = where();
  if (document.querySelectorAll('#views li').length !== views().length) { drawViews(); markView(); }
  wantsDrawing ||= isMore;
  if (name === 'summary') {
    document.getElementById('live')?.replaceWith(liveSection());
    markScrolling();
    if (wantsDrawing && isDue()) redrawSummary();
  } else if (name === 'episodes' && wantsDrawing && isDue()) redrawTable();
}

const isDue = () => performance.now() - drawnAt > Math.max(DRAW_EVERY_MS, 10 * drawingMs);

function redrawSummary() {
  const began = performance.now();
  const main = document.getElementById('main');
  if (main.contains(document.activeElement) && document.activeElement !== main && !document.activeElement.closest('#live')) return;
  wantsDrawing = false;
  const open = new Set([...main.querySelectorAll('details[open] > summary')].map((one) => one.textContent.replace(/^[\d,]+/, '')));
  const drawn = append(document.createDocumentFragment(), summaryView());
  drawn.querySelectorAll('details').forEach((one) => { if (open.has(one.querySelector('summary').textContent.replace(/^[\d,]+/, ''))) one.open = true; });
  main.replaceChildren(drawn);
  markScrolling();
  drawnAt = performance.now();
  drawingMs = drawnAt - began;
}

function redrawTable() {
  if (view.page > 0 || document.activeElement.closest?.('#table, .filters')) { refilter(); sayFound(); drawnAt = performance.now(); return; }
  wantsDrawing = false;
  redraw();
  drawnAt = performance.now();
}

// The episodes whose details a view needs.
function neededFor(name, episode) {
  if (name === 'episode') return [episode];
  return (name === 'group' ? membersOf(episode) : sameProblem(episode)).slice(0, MOST_BESIDE);
}

async function fetchDetails(episodes) {
  const told = await answerOf('/episodes?of=' + episodes.join(',')) || {details: {}, shared: {}, tokens: {}, id: known.id};
  if (told.id !== known.id) return;
  const shared = block('shared');
  const at = {system: shared.system.length, tools: shared.tools.length};
  for (const kind of ['system', 'tools']) shared[kind].push(...(told.shared[kind] || []));
  for (const episode of episodes) {
    const found = told.details[episode] || {t: [], group: '', e: ['watch', 'StoreError', 'the episode could not be read: is the server still running?']};
    if (found.tools !== undefined) found.tools += at.tools;
    for (const message of found.m || []) if (typeof message[1] === 'number') message[1] += at.system;
    if (fetched.size >= KEPT_DETAILS) fetched.delete(fetched.keys().next().value);
    fetched.set(episode, found);
  }
  for (const [run, texts] of Object.entries(told.tokens)) block('tokens')[run] = Object.assign(block('tokens')[run] || {}, texts);
}

const duration = (seconds) => seconds < 90 ? `${Math.round(seconds)} s` : seconds < 5400 ? `${Math.round(seconds / 60)} min` : `${(seconds / 3600).toFixed(1)} h`;

function liveSection() {
  return el('section', {id: 'live', 'aria-label': 'Now'},
    isConnected ? null : el('p', {class: 'notes', role: 'status'}, 'The server does not answer: what is below is as it was. Start llm-envs watch again on the same --port.'),
    isReading && nEpisodes > 0 ? el('p', {class: 'soft'}, `Reading what is stored: ${count(nEpisodes, 'episode')} so far.`) : null,
    el('div', {class: 'runs-now'}, statuses.map((now, run) => runNow(now, index.runs[run]?.name || ''))), newestTable());
}

function runNow(now, name) {
  const isOver = !['running', 'silent', 'no live file'].includes(now.state);
  const kind = now.state === 'running' || now.state === 'finished' ? 'success' : now.state === 'no live file' ? '' : 'failure';
  const facts = [];
  if (now.steps) facts.push(['step', `${now.step.toLocaleString('en')} of ${now.steps.toLocaleString('en')}`]);
  if (now.total) facts.push(['episodes', `${(now.before + now.done).toLocaleString('en')} of ${now.total.toLocaleString('en')}`]);
  else if (now.done) facts.push(['episodes', now.done.toLocaleString('en')]);
  if (now.state === 'running' && now.done) facts.push(['throughput', `${number(now.episodes_per_s)} episodes/s, ${Math.round(now.tokens_per_s).toLocaleString('en')} tokens/s`]);
  if (now.done > now.failed) facts.push(['success', percent(now.success / (now.done - now.failed))], ['mean reward', number(now.reward / (now.done - now.failed))]);
  const shares = sharesOf(now);
  return el('article', {'aria-label': name}, el('h3', {}, name, ' ', el('span', {class: 'badge ' + kind}, isOver && kind === 'failure' ? 'failed' : now.state)),
    now.alarms.length ? el('ul', {class: 'notes alarms', role: 'alert'}, now.alarms.map((alarm) => el('li', {}, alarm))) : null,
    el('dl', {}, facts.map(([label, value]) => [el('dt', {}, label), el('dd', {}, value)])),
    shares.length ? el('p', {class: 'soft'}, 'Waiting: ', shares.map(([label, share]) => `${label} ${percent(share)}`).join(' · ')) : null,
    now.open?.length ? el('details', {open: true}, el('summary', {}, `${count(now.running, 'episode')} running` + (now.open.length < now.running ? ', the oldest:' : ':')),
      el('ul', {class: 'running'}, now.open.slice(0, 8).map(([env, seed, , member, seconds]) => el('li', {}, `${env} · seed ${seed} · member ${member} · ${duration(seconds)}`)))) : null);
}

// Of the time in which episodes are played: at least one waits for the model, or for its environment; of a training's
// whole time: the trainer waits for episodes.
function sharesOf(now) {
  const shares = [];
  if (now.playing_s) shares.push(['for the model', Math.min(1, now.policy_s / now.playing_s)], ['for environments', Math.min(1, now.env_s / now.playing_s)]);
  if (now.waited_s) shares.push(['the trainer for episodes', Math.min(1, now.waited_s / Math.max(now.lasted_s, now.waited_s))]);
  return shares;
}

function newestTable() {
  const newest = everyEpisode.slice(-NEWEST).reverse();
  if (!newest.length) return el('p', {class: 'soft'}, 'No episode has ended yet.');
  return el('div', {class: 'wide', tabindex: 0, role: 'region', 'aria-label': 'Newest episodes'}, el('table', {class: 'newest'},
    el('caption', {}, 'Newest episodes'),
    el('tbody', {}, newest.map((episode) => el('tr', {}, el('th', {scope: 'row', class: 'short'}, link('episode/' + episode, (isOfMany ? runName(episode) + ' · ' : '') + envName(episode))),
      el('td', {}, badge(episode)), el('td', {class: 'right'}, number(columns.reward[episode])),
      el('td', {class: 'begins'}, beginsWith(episode)))))));
}

// Begin to ask; nothing is drawn before the first answer.
function follow() {
  forget('');
  document.addEventListener('visibilitychange', () => { if (!document.hidden) ask(); });
  ask();
}
