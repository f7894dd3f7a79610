-- The reply to a claim that was judged by other gates: what gated() does. Follows gates.lua.
local now, all = gates(GATES)
return now and {'gates', now, listed(all)} or {'badgate'}
