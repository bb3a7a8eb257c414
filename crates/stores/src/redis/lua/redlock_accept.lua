--- redlock_accept
-- Phase 2 of a grant. Raises the counter to the proposed fencing token, and accepts it if the token
-- still has the lock here, no higher ballot was promised, and no earlier grant on this node had a
-- fencing token as high.
--
-- KEYS  1 the lock   2 the bucket's fencing counter
-- ARGV  1 token hash   2 ballot   3 fencing token   4 owner, '' for none   5 the attempt that first
--       proposed it
-- Finds 'own' | 'competing' | 'free'

local token, ballot, fence, owner, by = unpack(ARGV)
fence = tonumber(fence)

-- Step 3 of the proof that fencing tokens rise: also where the fencing token is not accepted.
if fence > last_fence() then
  redis.call('SET', counter, whole(fence))
end
local held = redis.call('HMGET', lock, 'token', 'promised', 'floor')
if not held[1] then
  return report('free')
end
if held[1] ~= token then
  return report('competing')
end
-- Step 5 of the same proof is the floor; step 2 of "a grant has one fencing token" is the ballot.
if ballot >= (held[2] or '') and fence > tonumber(held[3] or 0) then
  redis.call('HSET', lock, 'fence', whole(fence), 'owner', owner, 'by', by, 'promised', ballot,
    'accepted', ballot)
end
return report('own')
