-- Frees the lock of those that held it when the operator asked, and hands it on: later holders keep it. A key that is
-- no lock is left alone. Follows shape.lua, clock.lua, left.lua and what serves the queue.
-- KEYS  1 lock  2 version of the gates, then on a cluster those that it may use
-- ARGV  1 base, as in run.lua  2 claim ms  3 PUBLISH or SPUBLISH  4 as in shape.lua
--       5 nonce of this Break, of which a copy may come later, or "" to ask for the holders  6... these
-- Reply 1 freed | {what}: what the key holds instead of a lock | {"", nonce...}: the holders
local what = shape(KEYS[1], ARGV[4])
if what and what ~= 'lock' then return {what} end
clock()
of(KEYS[1], ARGV[1], ARGV[5])
call('ZREM', QUEUE, '') -- nothing: a demoted master refuses it, and one without memory lets write what follows
GATES = KEYS[2]
groups()

-- The nonces of ours, and what tells a stranger's hold from the next one's.
local value = redis.pcall('GET', LOCK) -- a lock of Redisson is no string
local plain = type(value) == 'string'
local group = plain and marker(value)
local holders = plain and {} or value and call('HKEYS', LOCK) or {}
if group then holders = call('ZRANGE', HOLDS, 0, -1) end
if plain and #holders == 0 then
  local nonce = string.match(value, '^(%x+):%d+:') or ''
  holders[1] = #nonce == 32 and nonce or redis.sha1hex(value)
end
if ARGV[5] == '' then
  table.insert(holders, 1, '')
  return holders
end

if call('EXISTS', TOMB) == 1 then return 1 end
local seen, broken, others = {}, {}, false
for i = 6, #ARGV do seen[ARGV[i]] = true end
for _, who in ipairs(holders) do
  if seen[who] then broken[#broken + 1] = who else others = true end
end
if others and not (group and #broken > 0) then return 1 end
local keep = call('PTTL', LOCK) + 10000 -- longer than any hold
if others then
  tally(value)
  for _, nonce in ipairs(broken) do remove(nonce) end
else
  call('DEL', LOCK, HOLDS, PARTS)
  held = ''
end
call('SET', TOMB, 'break', 'PX', 60000)
for _, who in ipairs(broken) do
  if #who == 32 then mark(ARGV[1] .. 'x' .. who, keep) end
end
serve(ARGV[3], '', ARGV[2])
return 1
