--- redlock_acquire
-- Phase 1 of a grant. Gives the lock on this node if it is free, or reports its holder. The same
-- token again keeps what it has. Where the token has the lock, the node promises the attempt's
-- ballot.
--
-- KEYS  1 the lock   2 the bucket's fencing counter
-- ARGV  1 token hash   2 TTL in ms   3 attempt   4 ballot
-- Finds 'own' | 'competing'

local token, ttl, attempt, ballot = unpack(ARGV)

local held = redis.call('HMGET', lock, 'token', 'attempt', 'ttl')
if not held[1] then
  local time = redis.call('TIME')
  local acquired = whole(time[1] * 1000 + math.floor(time[2] / 1000))
  -- The floor is step 4 of the proof that fencing tokens rise.
  redis.call('HSET', lock, 'token', token, 'fence', '0', 'ttl', ttl, 'owner', '',
    'acquired', acquired, 'attempt', attempt, 'floor', whole(last_fence()), 'promised', ballot)
  redis.call('PEXPIRE', lock, ttl)
  return report('own')
end
if redis.call('PTTL', lock) < 0 then
  -- Another client took the expiry away (PERSIST). A lock without one would be held for ever.
  redis.call('PEXPIRE', lock, held[3])
end
if held[1] ~= token then
  return report('competing')
end
if held[2] ~= attempt then
  -- Two attempts share the grant now, so neither may withdraw it.
  redis.call('HSET', lock, 'attempt', '')
end
promise(ballot)
return report('own')
