-- The requests that run.lua has left over, one by one. An error of one leaves the others alone.
if a == 0 then clock() end
GATES = KEYS[queues]
local claim, slack, process, pub = string.match(ARGV[3], '^(%d+) (%d+) (%S+) (%S+)$')
for i = 1, r + a do
  if not replies[i] then
    local at = i > r and asked + 4 * (i - r - 1) or 3 * i
    local nonce = sub(ARGV[at + 1], 1, 32)
    local queue, lock = KEYS[queues + i], i > r and KEYS[locks + i - r] or KEYS[i]
    of(lock, sub(queue, 1, -#lock - 2), nonce)
    local ok, reply
    if i > r then
      ok, reply = pcall(acquire, nonce, ARGV[at + 2], ARGV[at + 3], ARGV[at + 4], claim, slack, process, pub)
    else
      ok, reply = pcall(release, nonce, tonumber(ARGV[at + 2]), ARGV[at + 3], claim, pub)
    end
    if not ok then
      reply = {'err', tostring(type(reply) == 'table' and reply.err or reply)}
      local refused = refusal(reply[2])
      if refused then return refused end
    end
    replies[i] = reply
  end
end
return replies
