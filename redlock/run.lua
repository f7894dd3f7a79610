-- Does the operations, in order.
local replies = {}
for i = 2, #KEYS do
  local kind = args(1)
  replies[i - 1] = ops[kind](KEYS[i])
end
return replies
