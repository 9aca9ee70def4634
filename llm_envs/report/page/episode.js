// One episode: its head, the conversation as a chat, rewards by turn, tokens.

// Thinking and calls, by the markers of the common formats; a part that is not closed goes on to the end.
const PARTS = new RegExp([
  '<think(?:ing)?>[^]*?(?:</think(?:ing)?>|$)', '\\[THINK\\][^]*?(?:\\[/THINK\\]|$)',
  '<\\|START_THINKING\\|>[^]*?(?:<\\|END_THINKING\\|>|$)', '<\\|channel\\|>analysis<\\|message\\|>[^]*?(?:<\\|end\\|>|$)',
  '<tool_call>[^]*?(?:</tool_call>|$)', '\\[TOOL_CALLS\\][^]*$', '<\\|python_tag\\|>[^]*$',
  '<\\|START_ACTION\\|>[^]*?(?:<\\|END_ACTION\\|>|$)', '<\\|tool_call_start\\|>[^]*?(?:<\\|tool_call_end\\|>|$)',
  '<answer>[^]*?(?:</answer>|$)',
].join('|'), 'g');

function kindOf(text) {
  if (/^(<think|\[THINK|<\|START_THINKING|<\|channel\|>analysis)/.test(text)) return 'thinking';
  return text.startsWith('<answer>') ? 'answer' : 'call';
}

// Text -> [[kind, text], ...]: put together they are the text again.
function partsOf(text) {
  const parts = [];
  let place = 0;
  const close = text.search(/<\/think>|\[\/THINK\]/), open = text.search(/<think>|\[THINK\]/);
  if (close >= 0 && (open < 0 || close < open)) {  // the opening tag stands in the prompt
    place = text.indexOf(text[close] === '<' ? '>' : ']', close) + 1;
    parts.push(['thinking', text.slice(0, place)]);
  }
  const base = place;
  for (const match of text.slice(base).matchAll(PARTS)) {
    const start = base + match.index;
    if (start > place) parts.push(['text', text.slice(place, start)]);
    parts.push([kindOf(match[0]), match[0]]);
    place = start + match[0].length;
  }
  if (place < text.length || !parts.length) parts.push(['text', text.slice(place)]);
  return parts;
}

const folded = (label, kind, text) => el('details', {class: kind}, el('summary', {}, label), el('div', {class: 'said ' + kind}, text));

// What the model wrote; thinking is folded, and so is the text of a call that its card shows again.
function shownPart([kind, text], hasCards) {
  if (kind === 'thinking') return folded(`Thinking (${count(text.length, 'character')})`, kind, text);
  if (kind === 'call' && hasCards) return folded('The call as it was written', kind, text);
  const said = kind === 'text' ? text.replace(/^\n+|\n+$/g, '') : text;
  return said ? el('div', {class: 'said ' + kind}, said) : null;
}

function bubble(role, label, ...content) {
  return el('li', {class: 'bubble ' + role}, el('div', {class: 'role'}, label), content);
}

// A call and its result are one card; `told` is the message that gave the result to the model.
function callCard([name, given, output, isGood, error, seconds], told) {
  return el('section', {class: 'call-card', 'aria-label': `Call of ${name}`},
    el('div', {class: 'call-head'}, el('b', {}, name), el('span', {class: 'badge ' + (isGood ? 'success' : 'failure')}, isGood ? 'ok' : error || 'failed'),
      seconds >= 0.001 && el('span', {class: 'soft'}, number(seconds) + ' s')),
    el('pre', {class: 'given-arguments'}, given), el('div', {class: 'role'}, 'result'), el('pre', {}, told === undefined ? output : told));
}

// A conversation, or its messages from `start` to `stop`.
function chat(episode, {start = 0, stop = Infinity, label = 'Conversation'} = {}) {
  const {m, t} = details(episode);
  if (!m) return el('p', {class: 'notes'}, 'This conversation was left out of the page: see the notes of the summary.');
  const nAssistant = m.filter(([role]) => role === 'assistant').length;
  let turn = t.length - nAssistant;  // an environment may have spoken as an assistant before
  let waiting = [];
  const out = [];
  for (let place = start; place < Math.min(stop, m.length); place += 1) {
    const [role, content, calls] = m[place];
    const text = typeof content === 'number' ? block('shared').system[content] : content;
    if (role !== 'assistant') {
      if (role === 'system' && text.length > 600) {
        out.push(bubble(role, role, el('details', {}, el('summary', {}, text.slice(0, 120) + '…'), el('div', {class: 'said'}, text))));
      } else out.push(bubble(role, role, el('div', {class: 'said'}, text)));
      continue;
    }
    const told = t[turn];
    const results = told ? told[6] : [];
    waiting = [];
    while (waiting.length < results.length && m[place + 1 + waiting.length]?.[0] === 'tool') waiting.push(m[place + 1 + waiting.length][1]);
    const asked = calls && !results.length ? calls.map(([name, given]) => el('pre', {class: 'call'}, `${name} ${given}`)) : null;
    const parts = partsOf(text), hasCards = results.length >= parts.filter(([kind]) => kind === 'call').length;
    const said = parts.map((part) => shownPart(part, hasCards && results.length)).filter(Boolean);
    out.push(bubble(role, turn >= 0 && told ? `assistant · turn ${turn + 1}` : role, said.length || asked || results.length ? said : el('div', {class: 'said soft'}, '(nothing)'), asked,
      results.map((result, nth) => callCard(result, waiting[nth])), told && [turnLine(told), playOn(episode, turn)]));
    place += waiting.length;
    turn += 1;
  }
  return el('ol', {class: 'chat', 'aria-label': label}, out);
}

function turnLine([reward, parts, finish]) {
  const named = Object.entries(parts).filter(([, value]) => value).map(([name, value]) => ` · ${name} ${signed(value)}`);
  return el('div', {class: 'turn'}, el('b', {class: reward > 0 ? 'good' : reward < 0 ? 'bad' : null}, 'reward ' + signed(reward)), named, ' · ', finish);
}

const quoted = (text) => /^[\w@%+=:,./-]+$/.test(text) ? text : `'${text.replaceAll("'", "'\\''")}'`;

// The command that plays the episode again from a turn on.
function playOn(episode, turn) {
  const place = `${details(episode).group}/${columns.member[episode]}`;
  return el('details', {class: 'play-on'}, el('summary', {}, 'Play on from here'),
    el('pre', {}, `llm-envs branch ${quoted(runName(episode))} --episode ${quoted(place)} --turn ${turn} --times 16 --model DIR`));
}

function turnsTable(episode) {
  const {t, r} = details(episode);
  if (!t.length) return null;
  const names = [...new Set(t.flatMap((turn) => Object.keys(turn[1])))];
  const most = Math.max(...t.map(([reward]) => Math.abs(reward))) || 1;
  const bar = (value) => svg('svg', {class: 'bar', viewBox: '-50 0 100 10', 'aria-hidden': 'true'},
    svg('path', {class: 'grid', d: 'M0 0V10'}),
    svg('rect', {class: value < 0 ? 'charged' : 'paid', y: 1, height: 8, x: Math.min(0, value / most * 50), width: Math.abs(value / most * 50)}));
  return [el('h3', {}, 'Reward by turn'), el('div', {class: 'wide', tabindex: 0, role: 'region', 'aria-label': 'Reward by turn'}, el('table', {class: 'turns'},
    el('thead', {}, el('tr', {}, ['turn', 'reward', '', ...names, 'tokens', 'ended', 'seconds'].map((name) =>
      name ? el('th', {scope: 'col', class: 'right'}, name) : el('td', {})))),
    el('tbody', {}, t.map((turn, place) => el('tr', {}, el('th', {scope: 'row', class: 'right'}, place + 1),
      el('td', {class: 'right'}, signed(turn[0])), el('td', {}, bar(turn[0])),
      names.map((name) => el('td', {class: 'right'}, name in turn[1] ? signed(turn[1][name]) : '')),
      el('td', {class: 'right'}, turn[7]), el('td', {class: 'right'}, turn[2]), el('td', {class: 'right'}, number(turn[5])))))))];
}

// First token of a turn in a row -> the turn's number.
const turnsOf = (turns, row) => new Map(turns.map((turn, place) => [turn, place]).filter(([turn]) => turn[3] === row).map(([turn, place]) => [turn[4], place + 1]));

function tokenSection(episode) {
  const {r, t} = details(episode);
  if (r === null) return [el('h3', {}, 'Tokens'), el('p', {class: 'notes'}, 'These tokens were left out of the page: see the notes of the summary.')];
  if (!r) return [el('h3', {}, 'Tokens'), el('p', {class: 'soft'}, 'Played without tokens: the policy spoke in text.')];
  return [el('h3', {}, 'Tokens'), r.map((row, place) => tokenView(episode, row, place, r.length, turnsOf(t, place)))];
}

function episodeHead(episode, level = 'h2', name = envName(episode)) {
  const {e, why} = details(episode);
  const facts = [level === 'h2' && isOfMany && runName(episode), level === 'h2' && `seed ${columns.seed[episode]}`, level === 'h2' && `member ${columns.member[episode]}`,
    count(columns.turns[episode], 'turn'), `${columns.tokens[episode].toLocaleString('en')} sampled tokens`, 'ended: ' + stopName(episode),
    level === 'h2' && settingsOf(episode), columns.step[episode] !== null && `step ${columns.step[episode]}`,
    columns.weights[episode] !== null && `weights of step ${columns.weights[episode]}`];
  return el('header', {class: 'episode-head'}, el(level, {}, name, ' ', badge(episode),
    columns.reward[episode] !== null && el('span', {class: 'soft'}, ` reward ${number(columns.reward[episode])}`)),
    el('p', {class: 'soft'}, facts.filter(Boolean).join(' · ')),
    why && el('p', {class: 'notes why'}, `${columns.reward[episode] === null ? 'No reward' : 'Reward ' + number(columns.reward[episode])}: ${why}`),
    e && el('p', {class: 'notes'}, `${e[0]}: ${e[1]}: ${e[2]}`));
}

// What a training learned from: its reward columns with their weights, and the advantage.
function learnedTable(episode) {
  const {learned} = details(episode);
  if (!learned) return null;
  const rows = Object.entries(learned.columns).map(([name, value]) => [name, signed(value), number(learned.weights[name] ?? 1)]);
  return [el('h3', {}, 'Learned from'), el('div', {class: 'wide', tabindex: 0, role: 'region', 'aria-label': 'Learned from'}, el('table', {class: 'turns'},
    el('thead', {}, el('tr', {}, ['reward', 'value', 'weight'].map((name, place) => el('th', {scope: 'col', class: place > 0 && 'right'}, name)))),
    el('tbody', {}, rows.map(([name, ...rest]) => el('tr', {}, el('th', {scope: 'row'}, name), rest.map((text) => el('td', {class: 'right'}, text)))),
      learned.advantage !== null && el('tr', {}, el('th', {scope: 'row'}, 'advantage'), el('td', {class: 'right'}, signed(learned.advantage)), el('td', {})))))];
}

function neighbours(episode) {
  const place = shown.indexOf(episode);
  return place < 0 ? [null, null] : [shown[place - 1] ?? null, shown[place + 1] ?? null];
}

function episodeView(episode) {
  const {tools, meta} = details(episode);
  const [before, after] = neighbours(episode);
  current = episode;
  const place = shown.indexOf(episode);
  if (place >= 0) view.page = Math.floor(place / PAGE);
  const step = (to, text) => to === null ? el('span', {class: 'soft'}, text) : link('episode/' + to, text);
  return [
    el('nav', {class: 'steps', 'aria-label': 'Episodes'}, link('episodes', '← All episodes'), step(before, 'Previous'), step(after, 'Next'),
      el('span', {class: 'soft'}, place < 0 ? '' : `${(place + 1).toLocaleString('en')} of ${shown.length.toLocaleString('en')}`)),
    episodeHead(episode), groupStrip(episode), chat(episode), turnsTable(episode), learnedTable(episode), tokenSection(episode),
    tools !== undefined && el('details', {}, el('summary', {}, 'Tools that the model was shown'), el('pre', {}, block('shared').tools[tools])),
    meta && el('details', {}, el('summary', {}, 'Metadata'), el('pre', {}, meta)),
  ];
}
