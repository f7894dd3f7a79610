-- What run.lua and break.lua begin with.
local call, sub, max, min = redis.call, string.sub, math.max, math.min

local text, us, ms -- the server's clock: us as text and as a number, ms
local function clock()
  local now = call('TIME')
  text = now[1] .. sub('000000', #now[2] + 1) .. now[2]
  us = tonumber(text)
  ms = math.floor(us / 1000)
end

-- Lua prints large numbers rounded; this does not.
local function num(n) return n == us and text or string.format('%.0f', n) end
