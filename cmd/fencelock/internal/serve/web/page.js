// The page of fencelock serve: it asks /api/locks again and again, and shows what it got as text.
'use strict';

const $ = (id) => document.getElementById(id);
const mostRows = 1000; // that are shown
const markFor = 3000; // ms that a change stays marked

let state = null; // the last answer
let got = 0; // when it came, on the clock of performance.now
let lost = 0; // since when there is none; 0: there is
let lastChange = 0; // the last change that is shown
const rows = new Map(); // name → its row
const marks = new Map(); // name → {event, until}

// shown makes visible what would not be, or would steer the text: control and format characters, and line ends.
const shown = (s) => s.replace(/[\p{C}\p{Zl}\p{Zp}]/gu, (c) => '\\u{' + c.codePointAt(0).toString(16) + '}');

// brief shows milliseconds in two units at most.
function brief(ms) {
  const s = Math.floor(Math.max(ms, 0) / 1000);
  if (s < 60) return s + 's';
  if (s < 3600) return Math.floor(s / 60) + 'm' + (s % 60) + 's';
  if (s < 86400) return Math.floor(s / 3600) + 'h' + Math.floor(s / 60) % 60 + 'm';
  return Math.floor(s / 86400) + 'd' + Math.floor(s / 3600) % 24 + 'h';
}

// age is how old what the last answer says is by now.
const age = () => state.age_ms + performance.now() - got;

function set(node, text) { // only what changes, so that nothing is read out or redrawn without need
  if (node.textContent !== text) node.textContent = text;
}

function element(tag, className, text) {
  const node = document.createElement(tag);
  node.className = className;
  if (text !== undefined) node.textContent = text;
  return node;
}

function newRow(name) {
  const tr = document.createElement('tr');
  tr.setAttribute('role', 'row');
  const cell = (tag, role, className, label) => {
    const node = tr.appendChild(element(tag, className));
    node.setAttribute('role', role);
    if (label) node.dataset.label = label;
    return node;
  };
  const head = cell('th', 'rowheader', 'name');
  head.scope = 'row';
  head.appendChild(element('bdi', '', shown(name)));
  const row = {
    tr,
    owner: cell('td', 'cell', 'owner').appendChild(element('bdi', '')),
    token: cell('td', 'cell', 'number', 'Token'),
    seen: cell('td', 'cell', 'number', 'Seen'),
    expires: cell('td', 'cell', 'number', 'Expires in'),
    waiters: cell('td', 'cell', 'number', 'Waiters'),
    act: cell('td', 'cell', 'act'),
  };
  const button = row.act.appendChild(element('button', 'danger', 'Break'));
  button.type = 'button';
  button.setAttribute('aria-label', 'Break ' + shown(name));
  button.addEventListener('click', () => ask(row.lock));
  return row;
}

// holder is who holds a lock: an owner, or how many there are, and how.
function holder(lock, unknown) {
  if (lock.holders > 1) return `${lock.holders} ${lock.mode}s`;
  return (lock.owner ? shown(lock.owner) : unknown) + (lock.mode ? ` (${lock.mode})` : '');
}

function fillRow(row, lock, now) {
  row.lock = lock;
  const left = lock.expires_in_ms - age();
  set(row.owner, lock.held ? holder(lock, '-') : 'nobody: it is waited for');
  row.owner.classList.toggle('free', !lock.held);
  set(row.token, lock.token ? String(lock.token) : '-');
  set(row.seen, lock.held ? (lock.older ? '>' : '') + brief(lock.seen_ms + performance.now() - got) : '-');
  set(row.expires, lock.leaked ? 'never' : lock.held && lock.expires_in_ms > 0 ? brief(Math.max(left, 0) + 999) : '-');
  row.expires.classList.toggle('leaked', lock.leaked);
  set(row.waiters, lock.waiters < 0 ? '-' : String(lock.waiters));
  row.act.hidden = !state.allow_break;
  row.act.firstChild.hidden = !lock.held;
  const mark = marks.get(lock.name);
  row.tr.className = mark && now < mark.until ? mark.event : '';
}

function matching() {
  const want = $('filter').value.toLowerCase();
  return state.locks.filter((l) => !want || shown(l.name).toLowerCase().includes(want) || shown(l.owner).toLowerCase().includes(want));
}

function showRows() {
  const now = performance.now();
  const all = matching();
  const some = all.slice(0, mostRows);
  const there = new Set(some.map((l) => l.name));
  for (const [name, row] of rows) {
    if (!there.has(name)) {
      row.tr.remove();
      rows.delete(name);
    }
  }
  let next = $('rows').firstChild;
  for (const lock of some) {
    if (!rows.has(lock.name)) rows.set(lock.name, newRow(lock.name));
    const row = rows.get(lock.name);
    fillRow(row, lock, now);
    if (row.tr === next) next = next.nextSibling;
    else $('rows').insertBefore(row.tr, next);
  }
  $('act').hidden = !state.allow_break;
  $('table').hidden = some.length === 0;
  $('empty').hidden = some.length > 0;
  set($('empty'), state.at === null ? 'The store has not answered yet.' : state.locks.length ? 'No lock matches the filter.' : 'No lock is held or waited for.');
  $('more').hidden = all.length === some.length;
  set($('more'), `The first ${some.length} of ${all.length}: filter for the others.`);
}

function showChanges() {
  const list = $('changes');
  const news = list.hasAttribute('aria-live'); // not in the first answer: what was there before
  for (const c of state.changes) {
    if (c.id <= lastChange) continue;
    if (news) marks.set(c.name, { event: c.event, until: performance.now() + markFor });
    const li = document.createElement('li');
    const time = li.appendChild(element('time', '', new Date(c.at).toLocaleTimeString()));
    time.dateTime = c.at;
    li.append(element('span', 'badge ' + c.event, c.event), element('bdi', 'name', shown(c.name)));
    const rest = [c.owner ? 'by ' + shown(c.owner) : '', c.token ? 'token ' + c.token : ''];
    if (c.event === 'released') rest.push('seen ' + (c.older ? '>' : '') + brief(c.seen_ms));
    li.appendChild(element('bdi', 'rest', rest.filter(Boolean).join(', ')));
    list.prepend(li);
    lastChange = c.id;
  }
  while (list.children.length > 50) list.lastChild.remove();
  $('quiet').hidden = list.children.length > 0;
  list.setAttribute('aria-live', 'polite');
}

function showTrouble() {
  let text = '';
  // With the time of day, not with a count: it is read out whenever it changes.
  const at = (time) => new Date(time).toLocaleTimeString();
  if (lost) text = `This page has not reached its server since ${at(lost)}. It tries again.`;
  else if (state && state.outage) text = `The store has not answered since ${at(state.outage.since)}: ${shown(state.outage.error)}. What is shown is what was seen last.`;
  $('trouble').hidden = !text;
  set($('trouble'), text);
  $('table').classList.toggle('old', Boolean(text));
}

function show() {
  showTrouble();
  if (!state) return;
  const held = state.locks.filter((l) => l.held).length;
  const waiting = state.locks.some((l) => l.waiters < 0) ? '' : `, ${state.locks.reduce((n, l) => n + l.waiters, 0)} waiting`;
  set($('counts'), `${held} held${waiting}`);
  document.title = `${held} held – Fencelock`;
  const as = state.at ? ` · as of ${new Date(state.at).toLocaleTimeString()}` : '';
  set($('about'), `${state.backend} at ${shown(state.store)} · ${state.prefix ? `locks ${shown(state.prefix)}*` : 'all locks'} · every ${state.interval_ms / 1000} s${as}`);
  showRows();
}

async function look() {
  try {
    const answer = await fetch('api/locks', { signal: AbortSignal.timeout(10000), cache: 'no-store' });
    if (!answer.ok) throw new Error(answer.statusText);
    const next = await answer.json();
    if (state && state.started !== next.started) { // another server: it counts from the beginning
      lastChange = 0;
      $('changes').replaceChildren();
    }
    state = next;
    got = performance.now();
    lost = 0;
    showChanges();
  } catch {
    lost = lost || Date.now();
  }
  show();
}

// again looks, one look after the other, while the page is seen.
async function again() {
  for (;;) {
    if (!document.hidden) await look();
    await new Promise((r) => setTimeout(r, Math.min(Math.max(state ? state.interval_ms : 1000, 200), 5000)));
  }
}

// ask asks whether to break a lock.
let asked = null;
function ask(lock) {
  asked = lock;
  set($('ask-name'), shown(lock.name));
  set($('ask-owner'), holder(lock, 'unknown'));
  set($('ask-token'), lock.token ? String(lock.token) : 'unknown');
  $('ask-error').hidden = true;
  $('ask').showModal();
  $('ask-secret').focus();
}

async function breakIt(event) {
  event.preventDefault();
  let why = '';
  $('ask-yes').disabled = true;
  try {
    const answer = await fetch('api/break', {
      method: 'POST',
      headers: { 'Content-Type': 'application/json', Authorization: 'Bearer ' + $('ask-secret').value },
      body: JSON.stringify({ name: asked.name, token: asked.token }),
    });
    if (!answer.ok) why = (await answer.json()).error;
  } catch {
    why = 'The server cannot be reached.';
  }
  $('ask-yes').disabled = false;
  $('ask-error').hidden = !why;
  set($('ask-error'), why);
  if (!why) {
    $('ask').close();
    look();
  }
}

$('filter').addEventListener('input', show);
$('ask-form').addEventListener('submit', breakIt);
$('ask-no').addEventListener('click', () => $('ask').close());
$('ask').addEventListener('close', () => { $('ask-secret').value = ''; });
document.addEventListener('visibilitychange', () => { if (!document.hidden) look(); });
setInterval(show, 1000);
again();
