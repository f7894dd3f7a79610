-- What scripts begin with that write.

-- What no request to this server can do is told as the server tells it, so that the client leaves a
-- demoted master's connection. Who misses replicas (min-replicas-to-write) may be one before long.
local function refusal(message)
  for _, code in ipairs({'READONLY', 'MISCONF', 'NOREPLICAS'}) do
    local at = string.find(message, code, 1, true)
    if at then return redis.error_reply(string.sub(message, at)) end
  end
end
