--- redlock_settle
-- Writes a grant's fencing token back: raises the counter to it, and notes it in the lock, if the
-- token still has the lock here and no earlier grant on this node had a fencing token as high.
--
-- KEYS  1 the lock   2 the bucket's fencing counter
-- ARGV  1 token hash   2 fencing token
-- Finds 'mine' | 'other' | 'free'

local token, fence = ARGV[1], tonumber(ARGV[2])

if fence > last_fence() then
  redis.call('SET', counter, whole(fence))
end
local held = redis.call('HMGET', lock, 'token', 'fence', 'floor')
if not held[1] then
  return vote('free')
end
if held[1] ~= token then
  return vote('other')
end
if fence > tonumber(held[2]) and fence > tonumber(held[3] or 0) then
  redis.call('HSET', lock, 'fence', whole(fence))
end
return vote('mine')
