--- get
-- Reports the holder of a lock.
--
-- KEYS  1 the lock   2 when the entries of its queue expire
-- Gives {'held', fence, ttl, pttl, owner, acquired, waiting} | {'not-held'}

local lock, places = KEYS[1], KEYS[2]

local held = redis.call('HMGET', lock, 'fence', 'ttl', 'owner', 'acquired')
if not held[1] then
  return {'not-held'}
end
local time = redis.call('TIME')
local now = string.format('(%.0f', time[1] * 1000 + math.floor(time[2] / 1000))
local waiting = redis.call('ZCOUNT', places, now, '+inf')
return {'held', held[1], held[2], redis.call('PTTL', lock), held[3], held[4], waiting}
