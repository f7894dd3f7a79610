-- What a script asks before it says that a lock is not ours. A master that was demoted may be
-- behind, so its word counts for nothing: it refuses any command that writes, also one that would
-- change nothing, as this one does on a key of any type. Returns the refusal, nil of a master.
local function behind(key, nonce)
  local reply = redis.pcall('ZREM', key, nonce)
  return type(reply) == 'table' and refusal(reply.err) or nil
end
