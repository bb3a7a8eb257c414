--- renew
-- Lets a lease last a full TTL from now; its fencing token stays.
--
-- KEYS  1 the lock   2 the order of its queue, if it is watched
-- ARGV  1 token hash   2 TTL in ms   3 the channel for changes, if the lock is watched
-- Gives {'renewed', fence, ttl, pttl, owner, acquired} | {'mismatch'} | {'not-held'}

local lock, token, ttl, changes = KEYS[1], ARGV[1], ARGV[2], ARGV[3]

local held = redis.call('HMGET', lock, 'token', 'fence', 'owner', 'acquired')
if not held[1] then
  return {'not-held'}
end
if held[1] ~= token then
  return {'mismatch'}
end
-- A client that renews has read the grant, so no attempt may withdraw it any more.
redis.call('HSET', lock, 'ttl', ttl, 'attempt', '')
redis.call('PEXPIRE', lock, ttl)
if changes then
  local waiting = redis.call('ZCARD', KEYS[2])
  redis.pcall('PUBLISH', changes,
    table.concat({'renewed', held[2], ttl, held[4], waiting, held[3], lock}, '\n'))
end
return {'renewed', held[2], ttl, tonumber(ttl), held[3], held[4]}
