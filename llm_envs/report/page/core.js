// Data, elements, numbers. Every text goes into the page as a text node: nothing here parses markup.

const parsed = (id) => JSON.parse(document.getElementById(id).textContent);
const index = parsed('index');
const columns = index.columns;
const outcomes = index.outcomes;
const isLive = index.live === true;  // then all of this grows (live.js)

// What follows from the data; called again when there are more.
let nEpisodes, everyEpisode, playedRuns, isOfMany, isGrouped, evaluated, ofTraining;
const gone = new Set();  // episodes that a later one has replaced
function derive() {
  nEpisodes = columns.run.length;
  everyEpisode = Array.from({length: nEpisodes}, (_, episode) => episode).filter((episode) => !gone.has(episode));
  const played = new Set(columns.run);
  playedRuns = index.runs.map((_, run) => run).filter((run) => played.has(run));
  isOfMany = playedRuns.length > 1;  // then an episode's run is said
  isGrouped = columns.member.some((member) => member !== 0);
  ofTraining = {step: columns.step.some((step) => step !== null), weights: columns.weights.some((version) => version !== null)};
  evaluated = index.runs.map((_, run) => run).filter((run) => index.runs[run].results);
}
derive();

// Parsed when they are first needed, and kept.
const blocks = new Map();
function block(id) {
  if (!blocks.has(id)) blocks.set(id, parsed(id));
  return blocks.get(id);
}

const firstOfChunk = [];
columns.chunk.forEach((chunk, place) => { if (firstOfChunk[chunk] === undefined) firstOfChunk[chunk] = place; });

const fetched = new Map();  // of a live page: episode -> its details
function details(episode) {
  if (isLive) return fetched.get(episode) || {t: [], group: ''};
  const chunk = columns.chunk[episode];
  return block('chunk-' + chunk)[episode - firstOfChunk[chunk]];
}

const runName = (episode) => index.runs[columns.run[episode]].name;
const envName = (episode) => index.names.env[columns.env[episode]];
const stopName = (episode) => index.names.stop[columns.stop[episode]];
const outcomeName = (episode) => outcomes[columns.outcome[episode]];
const settingsOf = (episode) => index.names.settings[columns.settings[episode]];
const beginsWith = (episode) => index.names.begins[columns.begins[episode]];

function append(node, children) {
  for (const child of children.flat(Infinity)) {
    if (child === null || child === undefined || child === false) continue;
    node.append(child instanceof Node ? child : document.createTextNode(String(child)));
  }
  return node;
}

function withAttributes(node, attributes) {
  for (const [name, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith('on')) node.addEventListener(name.slice(2), value);
    else node.setAttribute(name, value === true ? '' : String(value));
  }
  return node;
}

// el('p', {class: 'soft'}, 'text', el('b', {}, 'more')): a text is always a text, whatever is in it.
const el = (tag, attributes = {}, ...children) =>
  append(withAttributes(document.createElement(tag), attributes), children);
const svg = (tag, attributes = {}, ...children) =>
  append(withAttributes(document.createElementNS('http://www.w3.org/2000/svg', tag), attributes), children);

const number = (value, digits = 3) =>
  value === null || value === undefined ? '–' : String(Number(Number(value).toPrecision(digits)));
const signed = (value) => (value > 0 ? '+' : '') + number(value);
const percent = (value) => value === null || value === undefined ? '–' : (100 * value).toFixed(value > 0 && value < 0.0995 || value > 0.9905 && value < 1 ? 1 : 0) + '%';
const count = (n, noun) => n.toLocaleString('en') + ' ' + noun + (n === 1 ? '' : 's');
const sum = (values) => values.reduce((total, value) => total + value, 0);
const mean = (values) => sum(values) / values.length;

function groupBy(values, keyOf) {
  const groups = new Map();
  for (const value of values) {
    const key = keyOf(value);
    if (!groups.has(key)) groups.set(key, []);
    groups.get(key).push(value);
  }
  return groups;
}

// Said to screen readers; nothing is seen.
function announce(text) {
  document.getElementById('announce').textContent = text;
}

const badge = (episode) => el('span', {class: 'badge ' + outcomeName(episode)}, outcomeName(episode));

function link(hash, text, attributes = {}) {
  return el('a', {href: '#' + hash, ...attributes}, text);
}
