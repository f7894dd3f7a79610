-- What groups() defines, and for which lock: what is about holds of readers and of permits. It is part of
-- holds.lua.
local base = sub(COUNTER, 1, -2)
HOLDS, PARTS = base .. 'h' .. LOCK, base .. 'o' .. LOCK
if bury then return end

-- Whether the group has so many holds.
local function atleast(n) return #call('ZRANGE', HOLDS, n - 1, n - 1) > 0 end

-- The end of a hold: the first one's, or with -1 the last one's; nil if there is none.
function ends(i) return tonumber(call('ZRANGE', HOLDS, i, i, 'WITHSCORES')[2]) end

-- Sets the end of what stands for the group.
local function stretch(till)
  last = till
  for _, key in ipairs({HOLDS, PARTS, LOCK}) do call('PEXPIRE', key, num(till - ms)) end
end

-- Takes in a marker of so many of a mode, and buries the holds that have ended.
function bury(mode, n, value)
  held, word, stamp, last = mode, tonumber(n), value, ends(-1)
  if not last then
    held = 'x'
    return
  end
  if last <= ms then
    call('DEL', LOCK, HOLDS, PARTS)
    held = ''
    return
  end
  while true do -- the last one lives
    local first = call('ZRANGE', HOLDS, 0, 0, 'WITHSCORES')
    if tonumber(first[2]) > ms then break end
    call('ZREM', HOLDS, first[1])
    call('HDEL', PARTS, first[1])
  end
end

-- Takes a hold out, and with the last one the group. The dead are buried.
function remove(nonce)
  call('ZREM', HOLDS, nonce)
  call('HDEL', PARTS, nonce)
  taken = nil
  local now = ends(-1)
  if not now then
    call('DEL', LOCK, HOLDS, PARTS)
    held = ''
  elseif now < last then
    stretch(now)
  end
end

-- Reads the slots that are taken, and the least limit: the marker keeps one that may have left.
local function read()
  taken, word = {}, 2 ^ 31
  for _, v in ipairs(call('HVALS', PARTS)) do
    local limit, slot = string.match(v, '^(%d+) %d+ (%d+) ')
    word = min(word, tonumber(limit))
    taken[tonumber(slot)] = true
  end
end

-- The one rule: alone, or among one's kind where nobody's limit is exceeded.
function admits(mode, limit)
  if held == '' then return true end
  if held ~= mode then return false end
  if mode == 'r' then return true end
  if word < limit and atleast(word) then read() end
  return not atleast(min(word, limit))
end

-- The token and the slot of a claim that is admitted.
function number(mode, floor)
  if mode == 'r' and held == 'r' and word > floor then return word, 0 end
  local slot = 0
  if mode == 'p' and held == 'p' then
    if not taken then read() end
    while taken[slot] do slot = slot + 1 end
  end
  return draw(floor), slot
end

-- Makes a hold for px ms, or a claim; or renews it. The first hold of a group clears what is left of an earlier group
-- whose lock key some program has deleted.
function put(nonce, mode, limit, owner, px, state, n, slot)
  if held == '' then
    call('DEL', HOLDS, PARTS)
    held, word, stamp, last, taken = mode, mode == 'r' and n or limit, '', 0, {}
  end
  word = mode == 'r' and max(word, n) or min(word, limit)
  if taken then taken[slot] = true end
  local till, text = ms + px, 'shared:' .. mode .. ':' .. num(word)
  call('ZADD', HOLDS, num(till), nonce)
  call('HSET', PARTS, nonce, limit .. ' ' .. num(n) .. ' ' .. slot .. ' ' .. state .. ' ' .. owner)
  if text ~= stamp then
    stamp = text
    call('SET', LOCK, text, 'PX', num(max(till, last) - ms))
    stretch(max(till, last))
  elseif till > last then
    stretch(till)
  end
end

-- Whether anybody listens for a waiter. On a cluster PUBSUB tells it from 7.0 on, as sharded channels do.
function heard(pub, to)
  return pub == 'PUBLISH' or redis.pcall('PUBSUB', 'SHARDNUMSUB', to)[2] ~= 0
end
