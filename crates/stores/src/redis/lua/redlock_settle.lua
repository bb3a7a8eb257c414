--- redlock_settle
-- Writes a grant's fencing token back: raises the counter to it, and notes it in the lock, if the
-- token still has the lock here, no higher ballot was promised, and no earlier grant on this node had
-- a fencing token as high.
--
-- KEYS  1 the lock   2 the bucket's fencing counter
-- ARGV  1 token hash   2 ballot   3 fencing token   4 owner, '' for none   5 by which attempt
-- Finds 'mine' | 'other' | 'free'

local token, ballot, fence, owner, by = unpack(ARGV)
fence = tonumber(fence)

if fence > last_fence() then
  redis.call('SET', counter, whole(fence))
end
local held = redis.call('HMGET', lock, 'token', 'promised', 'floor')
if not held[1] then
  return vote('free')
end
if held[1] ~= token then
  return vote('other')
end
if ballot >= (held[2] or '') and fence > tonumber(held[3] or 0) then
  redis.call('HSET', lock, 'fence', whole(fence), 'owner', owner, 'by', by, 'promised', ballot,
    'accepted', ballot)
end
return vote('mine')
