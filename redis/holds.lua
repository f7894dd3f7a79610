-- The holders of a lock: one that is alone, or several as a group. Follows queue.lua.
--
--   LOCK   "nonce:token:owner" of one holder that is alone, or the marker of a group: "shared:r:era" of
--          readers, with the token of those that come next, or "shared:p:least" of permits, with the
--          least limit. So SET NX fails for everybody while anybody holds, and a program that knows
--          no groups sees a stranger's lock
--   HOLDS  zset: nonce -> until, in ms of the server's clock, of each hold of the group
--   PARTS  hash: nonce -> "limit token slot state owner"; state h: held, c: a claim
--
-- All three end with the hold that ends last. HOLDS and PARTS mean nothing without the marker.

-- How the lock is held: '' not at all, x by one, r by readers, p by permits. Of a group: the number in
-- the marker, the marker as it stands there, and when the last hold ends.
local held, word, stamp, last = '', 0, '', 0
local taken -- the slots of the permits, once they are read

local function marker(value) return string.match(value or '', '^shared:([rp]):(%d+)$') end

-- groups.lua has these, for locks that a group holds or is to hold: groups() defines them, which would cost the
-- others more than all else that they do.
local HOLDS, PARTS, bury, ends, remove, admits, number, put, heard
