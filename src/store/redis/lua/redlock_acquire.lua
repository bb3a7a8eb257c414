--- redlock_acquire
-- Grants a lock on this node, or says who has it here. The same token again keeps what it has.
--
-- KEYS  1 the lock   2 the bucket's fencing counter
-- ARGV  1 token hash   2 TTL in ms   3 owner, '' for none   4 attempt
-- Finds 'granted' | 'mine' | 'other'

local token, ttl, owner, attempt = unpack(ARGV)

local held = redis.call('HMGET', lock, 'token', 'attempt', 'ttl')
if not held[1] then
  local time = redis.call('TIME')
  local acquired = whole(time[1] * 1000 + math.floor(time[2] / 1000))
  redis.call('HSET', lock, 'token', token, 'fence', '0', 'ttl', ttl, 'owner', owner,
    'acquired', acquired, 'attempt', attempt, 'floor', whole(last_fence()))
  redis.call('PEXPIRE', lock, ttl)
  return vote('granted')
end
if redis.call('PTTL', lock) < 0 then
  -- Somebody took the expiry away (PERSIST). A lock without one would be held for ever.
  redis.call('PEXPIRE', lock, held[3])
end
if held[1] ~= token then
  return vote('other')
end
if held[2] ~= attempt then
  -- Two attempts share the grant now, so neither may withdraw it.
  redis.call('HSET', lock, 'attempt', '')
end
return vote('mine')
