// The token view: what the model wrote has a colour, by how likely it was; what it was given has none.

const TOKENS_AT_ONCE = 4000;  // each is an element, and a browser slows at some hundred thousand
const STEPS = [-0.05, -0.2, -0.5, -1, -2, -4];  // log-probabilities at which the colour changes

const levelOf = (logp) => logp === null ? 'unknown' : 'l' + STEPS.filter((step) => logp < step).length;

function tokenText(id) {
  const text = block('tokens')[id];
  return text === undefined ? String(id) : text.replace(/\n/g, '⏎\n').replace(/\t/g, '⇥\t');
}

function tokenView(row, place, total) {
  const [ids, edges, logps] = row;
  const list = el('div', {class: 'tokens' + (Object.keys(block('tokens')).length ? '' : ' ids')});
  const says = el('p', {class: 'readout', role: 'status'}, 'Choose a token to read its number, id and log-probability.');
  const more = el('button', {type: 'button', onclick: () => draw()}, 'Show more tokens');
  let next = 0, sampled = 0, run = 0;
  function draw() {
    const stop = Math.min(ids.length, next + TOKENS_AT_ONCE);
    while (next < stop) {
      while (run * 2 < edges.length && next >= edges[2 * run + 1]) run += 1;
      const isOn = run * 2 < edges.length && next >= edges[2 * run];
      const end = Math.min(stop, run * 2 >= edges.length ? ids.length : isOn ? edges[2 * run + 1] : edges[2 * run]);
      const part = el('span', {role: 'group', class: isOn ? 'sampled' : 'given',
        'aria-label': `${count(end - next, 'token')} ${isOn ? `written by the model, run ${run + 1}` : 'given to it'}`});
      for (; next < end; next += 1) {
        const logp = isOn ? logps[sampled++] : undefined;
        part.append(el('i', {class: isOn ? levelOf(logp) : null, title: aboutToken(next, ids[next], logp)}, tokenText(ids[next])));
      }
      list.append(part);
    }
    more.hidden = next >= ids.length;
  }
  list.addEventListener('click', (event) => { if (event.target.title) says.textContent = event.target.title; });
  const shade = el('input', {type: 'checkbox', checked: true, onchange: () => list.classList.toggle('plain', !shade.checked)});
  const trained = logps.length;
  const folded = el('details', {class: 'token-view', ontoggle: () => { if (folded.open && !next) draw(); }},
    el('summary', {}, `Tokens${total > 1 ? `, row ${place + 1} of ${total}` : ''}: ${count(ids.length, 'token')}, of which ` +
      `${trained.toLocaleString('en')} written by the model (mask 1)`),
    maskStrip(ids.length, edges), tokenLegend(), el('label', {class: 'inline'}, shade, 'colour by log-probability'), says, list, more);
  return folded;
}

function aboutToken(place, id, logp) {
  if (logp === undefined) return `token ${place}, id ${id}: given to the model, mask 0`;
  if (logp === null) return `token ${place}, id ${id}: mask 1, not sampled, so without a log-probability`;
  return `token ${place}, id ${id}: mask 1, log-probability ${logp.toFixed(2)}, probability ${percent(Math.exp(logp))}`;
}

// The whole row as one strip: where the mask is 1.
function maskStrip(length, edges) {
  const spans = [];
  for (let run = 0; run < edges.length; run += 2) {
    spans.push(svg('rect', {x: edges[run] / length * 1000, width: Math.max((edges[run + 1] - edges[run]) / length * 1000, 1.5),
      y: 0, height: 10, class: 'on'}));
  }
  return svg('svg', {class: 'strip', viewBox: '0 0 1000 10', preserveAspectRatio: 'none', role: 'img',
    'aria-label': `The mask over the row: 1 in ${count(edges.length / 2, 'run')}`}, spans);
}

function tokenLegend() {
  const marks = ['above ' + STEPS[0], ...STEPS.slice(1).map((step, place) => `${STEPS[place]} to ${step}`), 'below ' + STEPS[STEPS.length - 1]];
  return el('p', {class: 'token-legend soft'}, el('span', {class: 'given'}, el('i', {}, 'given')), ' mask 0 · mask 1, by log-probability: ',
    marks.map((text, place) => [el('span', {class: 'sampled'}, el('i', {class: 'l' + place}, text)), ' ']),
    el('span', {class: 'sampled'}, el('i', {class: 'unknown'}, 'not sampled')));
}
