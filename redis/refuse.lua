-- The beginning of scripts that write.

-- A refusal of every write is told as the server tells it, so that the client leaves a demoted master's
-- connection. A master that misses replicas (min-replicas-to-write) may be demoted before long.
local function refusal(message)
  for _, code in ipairs({'READONLY', 'MISCONF', 'NOREPLICAS'}) do
    local at = string.find(message, code, 1, true)
    if at then return redis.error_reply(string.sub(message, at)) end
  end
end
