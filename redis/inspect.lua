-- Describes a lock. Follows shape.lua and clock.lua.
-- KEYS  1 lock  2 queue  3 waiters  4 HOLDS  5 PARTS of holds.lua   ARGV  1 as in shape.lua
-- Reply {error} if the key is of another type and no lock, else
--   {value or "", 1 if it is there, pttl, live waiters, 1 if it is shaped like a lock}, and of a
--   group {holds, greatest token, owner, 1 if none is confirmed, those that end first}: the owner with its
--   mark, or of several the mark that all have; of each hold {nonce, token, slot, owner, pttl}
local what, value = shape(KEYS[1], ARGV[1])
if type(value) == 'table' then
  if what ~= 'lock' then return {value.err} end
  value = ''
elseif value and (what ~= 'lock' or #value > 4096) then
  value = '' -- none of ours is so long
end
clock()
local live = 0
for _, w in ipairs(call('HVALS', KEYS[3])) do
  local till = string.match(w, '^(%d+) ')
  if till and tonumber(till) >= ms then live = live + 1 end
end
local reply = {value or '', value and 1 or 0, call('PTTL', KEYS[1]), live, what == 'lock' and 1 or 0}
if not value or not string.match(value, '^shared:[rp]:%d+$') then return reply end

local all = call('ZRANGE', KEYS[4], 0, -1, 'WITHSCORES')
local count, greatest, owner, both, pending, first = 0, 0, '', '', 1, {}
for i = 1, #all, 2 do
  if tonumber(all[i + 1]) > ms then
    local token, slot, state, who =
      string.match(call('HGET', KEYS[5], all[i]) or '', '^%d+ (%d+) (%d+) ([hc]) (.*)$')
    count, owner = count + 1, who or ''
    local mark = string.match(owner, '%z.*$') or ''
    both = (count == 1 or both == mark) and mark or ''
    if state == 'h' then
      greatest, pending = max(greatest, tonumber(token)), 0
    end
    if token and #first < 100 then
      first[#first + 1] = {all[i], state == 'h' and token or '0', slot, who, all[i + 1] - ms}
    end
  end
end
if #all > 0 and count == 0 then
  reply[1], reply[2], reply[3] = '', 0, -2
  return reply
end
reply[6] = {count, greatest, count == 1 and owner or both, pending, first}
return reply
