-- What scripts begin with that need the time.
local call, sub, max, min = redis.call, string.sub, math.max, math.min

local text, us, ms -- the server's clock: us as text and as a number, ms
local function clock()
  local now = call('TIME')
  text = now[1] .. sub('000000', #now[2] + 1) .. now[2]
  us = tonumber(text)
  ms = math.floor(us / 1000)
end

-- Lua prints large numbers rounded; this does not. It is slow, so the last one is kept.
local printed, digits
local function num(n)
  if n == us then return text end
  if n ~= printed then printed, digits = n, string.format('%.0f', n) end
  return digits
end

-- Every token is below this number, which is exact in JSON and in Lua.
local tokens = 9007199254740992

-- A floor further ahead of the clock than an hour (backend.FloorAhead) would spend the numbers of
-- other names.
local function ahead(floor) return floor > us + 3600000000 end
