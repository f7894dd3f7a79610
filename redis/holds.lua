-- Who holds a lock, and the service of its queue, for exclusive claims and for those that several may
-- have at once. Follows queue.lua.
--
--   LOCK   "nonce:token:owner" of one holder that is alone, or the marker of a group: "shared:r:era" of
--          readers, with the token of those that come next, or "shared:p:least" of permits, with the
--          least limit. So SET NX fails for everybody while anybody holds, and a program that knows
--          no groups sees a stranger's lock
--   HOLDS  zset: nonce -> until, in ms of the server's clock, of each hold of the group
--   PARTS  hash: nonce -> "limit token slot state owner"; state h: held, c: a claim
--
-- All three end with the hold that ends last. HOLDS and PARTS mean nothing without the marker.

-- How the lock is held: '' not at all, x by one, r by readers, p by permits. Of a group: the number in
-- the marker, the marker as it stands there, and when the last hold ends.
local held, word, stamp, last = '', 0, '', 0
local taken -- the slots of the permits, once they are read

local function marker(value) return string.match(value or '', '^shared:([rp]):(%d+)$') end

-- Whether the group has so many holds.
local function atleast(n) return #call('ZRANGE', HOLDS, n - 1, n - 1) > 0 end

-- The end of a hold: the first one's, or with -1 the last one's; nil if there is none.
local function ends(i) return tonumber(call('ZRANGE', HOLDS, i, i, 'WITHSCORES')[2]) end

-- Sets the end of what stands for the group.
local function stretch(till)
  last = till
  for _, key in ipairs({HOLDS, PARTS, LOCK}) do call('PEXPIRE', key, num(till - ms)) end
end

-- Takes in the value of the lock, nil for none, and buries the holds that have ended: who calls it must
-- serve the queue. A marker whose holds are lost keeps everybody out until it expires.
local function tally(value)
  local mode, n = marker(value)
  taken = nil
  if not mode then
    held = value and 'x' or ''
    return
  end
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
local function remove(nonce)
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
local function admits(mode, limit)
  if held == '' then return true end
  if held ~= mode or mode == 'x' then return false end
  if mode == 'r' then return true end
  if word < limit and atleast(word) then read() end
  return not atleast(min(word, limit))
end

-- The token and the slot of a claim that is admitted.
local function number(mode, floor)
  if mode == 'r' and held == 'r' and word > floor then return word, 0 end
  local slot = 0
  if mode == 'p' and held == 'p' then
    if not taken then read() end
    while taken[slot] do slot = slot + 1 end
  end
  return draw(floor), slot
end

-- Makes a hold for px ms, or a claim; or renews it. Who founds a group clears what some program has left
-- that deleted the lock's key.
local function put(nonce, mode, limit, owner, px, state, n, slot)
  if mode == 'x' then
    call('SET', LOCK, nonce .. ':' .. num(n) .. ':' .. owner .. (state == 'c' and '\0' or ''), 'PX', px)
    held = 'x'
    return
  end
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
local function heard(pub, to)
  return pub == 'PUBLISH' or redis.pcall('PUBSUB', 'SHARDNUMSUB', to)[2] ~= 0
end

-- Hands the lock to all at the head of the queue who may have it, for as long as a claim lasts. If such a
-- waiter has said by which of its asks it takes that, and the gates are those that it was judged by
-- then, it holds the lock from now on, and hears so. Otherwise it must send its acquire again, which the
-- gates may refuse: until then what it has is a claim. The last of 16 in one call has such a claim, and
-- its acquire goes on. The dead are dropped at the head, also where it is not their turn, for those
-- behind them may have the lock. The waiter that stays the first is told to look when the time of a
-- claim is over, if any was given. Who queued while one held alone looks more rarely than waiters do
-- beside a group: the first then counts as alive no longer than twice that time unless it looks, and
-- the second is told to look then. Stops at the waiter self, who takes the lock himself, and returns whether
-- it is his turn.
local function serve(pub, self, claim)
  local given = 0
  local h = head()
  while h and h ~= self do
    local to, said, owner, entry = waiter(pub, h)
    local mode, limit, by = string.match(said or '', '^([rp])(%d+):(.*)$')
    mode, limit = mode or 'x', tonumber(limit or 1)
    if not to then
      drop(h)
    elseif given == 16 or not admits(mode, limit) then
      local till = num(ms + 2 * claim)
      local late = held ~= 'x' and tonumber(string.match(entry, '^%d+')) > tonumber(till)
      local lives
      if given > 0 or late then
        lives = call(pub, to, 'w' .. claim .. ' ' .. h) > 0
      else
        lives = held == 'x' or heard(pub, to)
      end
      if lives and late then
        call('HSET', WAITERS, h, till .. string.match(entry, ' .*$'))
        local next = call('ZRANGE', QUEUE, 1, 1)[1]
        to = next and waiter(pub, next)
        if to then call(pub, to, 'w' .. num(2 * claim) .. ' ' .. next) end
      end
      if lives then return false end
      drop(h)
    else
      local n, slot = number(mode, 0)
      local ask, version = string.match(by or said, '^(%d+)/(%S+)$')
      local push, state = 'g', 'c'
      if ask and given < 15 and judged(version) then
        push, state = 'h' .. ask .. ':' .. num(n) .. (mode == 'p' and ':' .. slot or ''), 'h'
      end
      drop(h)
      if call(pub, to, push .. ' ' .. h) > 0 then
        put(h, mode, limit, owner, claim, state, n, slot)
        given = given + 1
      end
    end
    h = head()
  end
  return true
end
