-- Says who holds a lock.
--
-- KEYS  1 the lock
-- Gives {'held', fence, ttl, pttl, owner, acquired} | {'not-held'}

local lock = KEYS[1]

local held = redis.call('HMGET', lock, 'fence', 'ttl', 'owner', 'acquired')
if not held[1] then
  return {'not-held'}
end
return {'held', held[1], held[2], redis.call('PTTL', lock), held[3], held[4]}
