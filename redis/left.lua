-- Leaves a mark that the lock was taken away from the nonce whose tombstone this is, for keep ms and no less
-- than what is there. Without memory for it a release that is sent again can take that for its own doing, which
-- is no reason to fail.
local function mark(tomb, keep)
  local reply = redis.pcall('SET', tomb, 'lost', 'PX', max(keep, 60000, call('PTTL', tomb)))
  if reply.err and not string.find(reply.err, 'OOM', 1, true) then error(reply) end
end

-- What a release or an abandon leaves behind, and its reply. A lock that is not ours was taken away, as
-- the first release of it can tell. It leaves a mark then, as does break.lua. A release that is sent
-- again, since no answer came to the first one, and finds neither lock nor mark, finds what the first
-- one did. One that frees the lock leaves 1, by which the first one knows if it comes after it. had is
-- how many ms of the hold were left.
local function left(ours, keep, kind, had)
  local was = not ours and (kind ~= '0' or keep > 0) and call('GET', TOMB)
  local lost = was == 'lost' or not ours and kind == '1' and was ~= '1'
  if lost then
    mark(TOMB, math.abs(keep))
  elseif keep > 0 or ours and kind == '2' then
    local word = kind ~= '0' and '1' or ours and 'lost' or was or '0' -- its holder may not know that it was broken
    call('SET', TOMB, word, 'PX', max(math.abs(keep), had + 10000))
  end
  return (ours or kind ~= '0' and not lost) and 1 or 0
end
