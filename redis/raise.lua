-- Raises counters. Never lowers one.
-- KEYS  the counters   ARGV  1 floor
for _, key in ipairs(KEYS) do
  local n = redis.call('GET', key) or '0'
  if not string.match(n, '^%d+$') then return redis.error_reply('FLEND the counter of tokens holds no number') end
  if tonumber(n) < tonumber(ARGV[1]) then redis.call('SET', key, ARGV[1]) end
end
return 1
