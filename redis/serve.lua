-- Takes in the value of the lock, nil for none, and deletes the holds of a group that have ended: its caller must
-- serve the queue. A marker whose holds are lost keeps all out until it expires. Follows holds.lua.
local function tally(value)
  local mode, n = marker(value)
  taken = nil
  if mode then
    groups()
    bury(mode, n, value)
  else
    held = value and 'x' or ''
  end
end

-- Hands the lock to all at the head of the queue who may have it, for as long as a claim lasts. If such a
-- waiter has said by which of its asks it takes that, and the gates are those that it was judged by
-- then, it holds the lock from now on, and hears so. Otherwise it must send its acquire again, which the
-- gates may refuse: until then what it has is a claim. The last of 16 in one call has such a claim, and
-- its acquire goes on. The dead are dropped at the head, also where it is not their turn, for those behind them may
-- have the lock. The waiter that stays the first looks by itself before the time of a claim is over. Stops at the
-- waiter self, who takes the lock himself, and returns whether it is his turn; nil if it stopped at the 1,000 that one
-- call takes out, so that the waiter looks again at once.
local function serve(pub, self, claim)
  local given = 0
  for _ = 1, 1000 do
    local h = call('ZRANGE', QUEUE, 0, 0)[1]
    if not h or h == self then return true end
    local to, said, owner = waiter(pub, h)
    local mode, limit, by = string.match(said or '', '^([rp])(%d+):(.*)$')
    if mode then
      groups()
      limit = tonumber(limit)
    end
    if not to then
      drop(h)
    elseif given == 16 or held ~= '' and not (mode and admits(mode, limit)) then
      if held == 'x' or heard(pub, to) then return false end
      drop(h)
    else
      local n, slot
      if mode then n, slot = number(mode, 0) else n = draw(0) end
      local ask, version = string.match(by or said, '^(%d+)/(%S+)$')
      local push, state = 'g', 'c'
      if ask and given < 15 and judged(version) then
        push, state = 'h' .. ask .. ':' .. num(n) .. (mode == 'p' and ':' .. slot or ''), 'h'
      end
      drop(h)
      if call(pub, to, push .. ' ' .. h) > 0 then
        if not mode then
          call('SET', LOCK, h .. ':' .. num(n) .. ':' .. owner .. (state == 'c' and '\0' or ''), 'PX', claim)
          held = 'x'
          return false
        end
        put(h, mode, limit, owner, claim, state, n, slot)
        given = given + 1
      end
    end
  end
end
