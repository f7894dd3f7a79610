-- Does the operations, in order.
local function run(keys, argv)
  call, ARGV, pos, now, left, base, known, terms, noted = redis.call, argv, 2, nil, nil, nil, nil, nil, nil
  set = SET[argv[1]] or settings(argv[1])
  ahead(keys)
  local replies = {}
  for i = 2, #keys do
    op = i - 1
    replies[op] = ops[args(1)](keys[i])
  end
  return replies
end
