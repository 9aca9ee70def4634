// The token view: what the model wrote has a colour, by how likely it was; what it was given has none.

const TOKENS_AT_ONCE = 4000;  // each is an element, and a browser slows at some hundred thousand
const STEPS = [-0.05, -0.2, -0.5, -1, -2, -4];  // log-probabilities at which the colour changes

const levelOf = (logp) => logp === null ? 'unknown' : 'l' + STEPS.filter((step) => logp < step).length;

// Token id -> its text, of the run's own tokenizer; empty without one.
function textsOf(episode) {
  const table = index.runs[columns.run[episode]].tokens;
  return table === null ? {} : block('tokens')[table];
}

function tokenText(texts, id) {
  const text = texts[id];
  return text === undefined ? String(id) : text.replace(/\n/g, '⏎\n').replace(/\t/g, '⇥\t');
}

// A row: its mask as a strip, then its tokens. `edges` are where the mask is 1: [start, stop, start, stop, ...]; `turns` says
// which turn begins at a token.
function tokenView(episode, [ids, edges, logps], place, total, turns) {
  const texts = textsOf(episode), hasTexts = Object.keys(texts).length > 0;
  const list = el('div', {class: 'tokens' + (hasTexts ? '' : ' ids'), tabindex: 0, role: 'group', 'aria-label': 'Tokens: the arrow keys go from one to the next'});
  const says = el('p', {class: 'readout', role: 'status'}, 'Choose a token, or go from one to the next by the arrow keys, to read its number, id and log-probability.');
  const more = el('button', {type: 'button', onclick: () => draw()}, 'Show more tokens');
  let next = 0, sampled = 0, run = 0;
  function draw() {
    const stop = Math.min(ids.length, next + TOKENS_AT_ONCE);
    while (next < stop) {
      while (run * 2 < edges.length && next >= edges[2 * run + 1]) run += 1;
      const isOn = run * 2 < edges.length && next >= edges[2 * run];
      const end = Math.min(stop, run * 2 >= edges.length ? ids.length : isOn ? edges[2 * run + 1] : edges[2 * run]);
      const turn = turns.get(next);
      const whose = isOn ? `written by the model${turn ? `, turn ${turn}` : ''}` : 'given to it';
      const part = el('span', {role: 'group', class: isOn ? 'sampled' : 'given', 'aria-label': `${count(end - next, 'token')} ${whose}`});
      for (; next < end; next += 1) {
        const logp = isOn ? logps[sampled++] : undefined;
        if (turns.has(next)) part.append(el('b', {class: 'turn-mark', 'aria-hidden': 'true'}, 'turn ' + turns.get(next)));
        part.append(el('i', {class: isOn ? levelOf(logp) : null, title: aboutToken(next, ids[next], logp)}, tokenText(texts, ids[next])));
      }
      list.append(part);
    }
    more.hidden = next >= ids.length;
  }
  let at = null;
  function choose(token) {
    if (!token) return;
    at?.classList.remove('at');
    at = token;
    at.classList.add('at');
    const text = tokenText(texts, ids[Array.prototype.indexOf.call(list.querySelectorAll('i'), at)]);
    says.textContent = (hasTexts ? JSON.stringify(text) + ': ' : '') + at.title;
  }
  list.addEventListener('click', (event) => { if (event.target.title) choose(event.target); });
  list.addEventListener('keydown', (event) => {
    const by = {ArrowRight: 1, ArrowLeft: -1}[event.key];
    if (!by || event.ctrlKey || event.metaKey || event.altKey) return;
    const all = [...list.querySelectorAll('i')], to = at ? all.indexOf(at) + by : 0;
    choose(all[Math.max(0, Math.min(all.length - 1, to))]);
    at?.scrollIntoView({block: 'nearest'});
    event.preventDefault();
    event.stopPropagation();  // elsewhere these keys go to the next episode
  });
  const shade = el('input', {type: 'checkbox', checked: true, onchange: () => list.classList.toggle('plain', !shade.checked)});
  const view = el('details', {class: 'token-view', ontoggle: () => { if (view.open && !next) draw(); }},
    el('summary', {}, `${total > 1 ? `Row ${place + 1} of ${total}: ` : ''}${count(ids.length, 'token')}, of which ` +
      `${logps.length.toLocaleString('en')} written by the model (mask 1)`),
    tokenLegend(logps.includes(null)), el('label', {class: 'inline'}, shade, 'colour by log-probability'), says, list, more);
  if (place === 0) { view.open = true; draw(); }
  return el('section', {class: 'row', 'aria-label': `Row ${place + 1}`}, maskStrip(ids.length, edges, logps), view);
}

function aboutToken(place, id, logp) {
  if (logp === undefined) return `token ${place}, id ${id}: given to the model, mask 0`;
  if (logp === null) return `token ${place}, id ${id}: mask 1, not sampled, so without a log-probability`;
  return `token ${place}, id ${id}: mask 1, log-probability ${logp.toFixed(2)}, probability ${percent(Math.exp(logp))}`;
}

// The whole row as one strip: where the mask is 1.
function maskStrip(length, edges, logps) {
  const spans = [];
  for (let run = 0; run < edges.length; run += 2) {
    spans.push(svg('rect', {x: edges[run] / length * 1000, width: Math.max((edges[run + 1] - edges[run]) / length * 1000, 1.5),
      y: 0, height: 10, class: 'on'}));
  }
  return svg('svg', {class: 'strip', viewBox: '0 0 1000 10', preserveAspectRatio: 'none', role: 'img',
    'aria-label': `The mask over the row: 1 in ${count(edges.length / 2, 'run')}, ${logps.length} of ${count(length, 'token')}`}, spans);
}

function tokenLegend(hasUnsampled) {
  const marks = ['above ' + STEPS[0], ...STEPS.slice(1).map((step, place) => `${STEPS[place]} to ${step}`), 'below ' + STEPS[STEPS.length - 1]];
  return el('p', {class: 'token-legend soft'}, 'mask 0: ', el('span', {class: 'given'}, el('i', {}, 'given')), ' · mask 1, by log-probability: ',
    marks.map((text, place) => [el('span', {class: 'sampled'}, el('i', {class: 'l' + place}, text)), ' ']),
    hasUnsampled && el('span', {class: 'sampled'}, el('i', {class: 'unknown'}, 'not sampled')));
}
