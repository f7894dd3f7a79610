-- What scripts begin with that write.

-- What no request to this server can do is told as the server tells it, so that the client leaves a
-- demoted master's connection.
local function refusal(message)
  for _, code in ipairs({'READONLY', 'MISCONF'}) do
    local at = string.find(message, code, 1, true)
    if at then return redis.error_reply(string.sub(message, at)) end
  end
end

-- What a script asks before it says that a lock is not ours. A master that was demoted may be
-- behind, so its word counts for nothing: it refuses any command that writes, also one that would
-- change nothing, as this one does on a key of any type. Returns the refusal, nil of a master.
local function behind(key, nonce)
  local reply = redis.pcall('ZREM', key, nonce)
  return type(reply) == 'table' and refusal(reply.err) or nil
end
