-- What run.lua has left to do, one by one. What goes wrong with one is no other's business.
if a == 0 then clock() end
for i = 1, r + a do
  if not replies[i] then
    local nonce, queue, lock = sub(ARGV[3 + i], 1, 32), KEYS[queues + i], i > r and KEYS[locks + i - r] or KEYS[i]
    of(lock, sub(queue, 1, -#lock - 2), nonce)
    local ok, reply = pcall(i > r and acquire or release, nonce, 3 + i)
    if not ok then reply = {'err', tostring(type(reply) == 'table' and reply.err or reply)} end
    replies[i] = reply
  end
end
return replies
