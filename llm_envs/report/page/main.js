// Which view is shown, and the keyboard. The part of the address after # says where one is, so that Back works.

const views = () => [['summary', isLive ? 'Live' : 'Summary'], ['episodes', 'Episodes'], ...(playedRuns.length > 1 || evaluated.length > 1 ? [['compare', 'Compare']] : [])];

function where() {
  const [name, given] = location.hash.slice(1).split('/');
  const episode = /^\d+$/.test(given || '') ? Number(given) : -1;
  if (['episode', 'group', 'problem'].includes(name) && episode < nEpisodes && episode >= 0) return [name, episode];
  return [views().some(([key]) => key === name) ? name : 'summary', null];
}

function draw([name, episode]) {
  if (isLive && episode !== null) {
    const missing = neededFor(name, episode).filter((one) => !fetched.has(one));
    if (missing.length) {
      fetchDetails(missing).then(route);
      return [el('h2', {}, 'Episode'), el('p', {class: 'soft'}, 'Asking for it…')];
    }
  }
  if (name === 'summary') return summaryView();
  if (name === 'episodes') return tableView();
  if (name === 'compare') return compareView();
  if (name === 'episode') return episodeView(episode);
  if (name === 'group') return besideView(episode, membersOf(episode), 'Group');
  return besideView(episode, sameProblem(episode), 'The same problem in all runs');
}

let isFirst = true, wantsSearch = false;
const focusSearch = () => document.getElementById('search').focus();
function route() {
  const place = where(), main = document.getElementById('main');
  const back = current;
  let drawn;
  try {
    drawn = draw(place);
  } catch (error) {  // damaged numbers must not take the rest of the page with them
    reportError(error);
    drawn = [el('h2', {}, 'Report'), el('p', {class: 'notes'}, `This view cannot be drawn: ${error}`)];
  }
  main.replaceChildren();
  append(main, drawn);
  markView();
  markScrolling();
  if (isFirst) { isFirst = false; return; }
  announce(main.querySelector('h2').textContent);
  if (wantsSearch) { wantsSearch = false; focusSearch(); return; }
  if (place[0] === 'episodes' && back !== null) {
    queueMicrotask(() => document.querySelector(`tr[data-episode="${back}"] a`)?.focus());
    return;
  }
  window.scrollTo(0, 0);
  main.focus({preventScroll: true});
}

// Tables that are wider than their place say that they scroll.
function markScrolling() {
  document.querySelectorAll('.wide').forEach((one) => one.classList.toggle('scrolls', one.scrollWidth > one.clientWidth + 1));
}

function markView() {
  const [name, episode] = where();
  document.querySelectorAll('#views a').forEach((a) =>
    a.getAttribute('href') === '#' + (episode === null ? name : 'episodes') ? a.setAttribute('aria-current', 'page') : a.removeAttribute('aria-current'));
}

const go = (hash) => { location.hash = hash; };

function onKey(event) {
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  const [name, episode] = where(), key = event.key, target = event.target;
  const isWriting = target.matches('input[type=search], textarea');
  if (key === 'Escape') {
    if (isWriting) { target.value = ''; view.search = ''; view.page = 0; redraw(); target.blur(); }
    else if (episode !== null) go('episodes');
    else return;
  } else if (isWriting || target.matches('select, input')) return;
  else if (key === '?') {
    const keys = document.getElementById('keys');
    keys.open = true;
    keys.querySelector('summary').focus();
  } else if (key === '/') {
    if (name === 'episodes') focusSearch();
    else { wantsSearch = true; go('episodes'); }
  } else if (name === 'episodes') {
    const isArrow = key === 'ArrowDown' || key === 'ArrowUp';
    if (isArrow && !(target.closest('#table') || target === document.body || target.id === 'main')) return;
    if (key === 'j' || key === 'ArrowDown') moveInTable(1);
    else if (key === 'k' || key === 'ArrowUp') moveInTable(-1);
    else return;
  } else if (name === 'episode') {
    const [before, after] = neighbours(episode);
    if (key === 'j' || key === 'ArrowRight') { if (after !== null) go('episode/' + after); }
    else if (key === 'k' || key === 'ArrowLeft') { if (before !== null) go('episode/' + before); }
    else if (key === 'g') go('group/' + episode);
    else return;
  } else return;
  event.preventDefault();
}

document.getElementById('title').textContent = index.title;
function drawViews() {
  document.getElementById('views').replaceChildren(...views().map(([key, label]) => el('li', {}, link(key, label))));
}
drawViews();
document.querySelector('.skip').addEventListener('click', (event) => { event.preventDefault(); document.getElementById('main').focus(); });
window.addEventListener('hashchange', route);
window.addEventListener('resize', markScrolling);
document.addEventListener('toggle', markScrolling, true);
document.addEventListener('keydown', onKey);
route();
if (isLive) follow();
