-- Grants a lock, or says who holds it. The same token again is the same grant.
--
-- KEYS  1 the lock   2 the bucket's fencing counter
-- ARGV  1 token hash   2 TTL in ms   3 owner, '' for none   4 attempt
-- Gives {'granted' | 'repeated' | 'held', fence, ttl, pttl, owner, acquired}

local lock, counter = KEYS[1], KEYS[2]
local token, ttl, owner, attempt = ARGV[1], ARGV[2], ARGV[3], ARGV[4]

local held = redis.call('HMGET', lock, 'token', 'fence', 'ttl', 'owner', 'acquired', 'attempt')
if held[1] then
  local found = 'held'
  if held[1] == token then
    found = 'repeated'
    if held[6] ~= attempt then
      -- Two attempts share the grant now, so neither may withdraw it.
      redis.call('HSET', lock, 'attempt', '')
    end
  end
  local left = redis.call('PTTL', lock)
  if left < 0 then
    -- Somebody took the expiry away (PERSIST). A lock without one would be held for ever.
    redis.call('PEXPIRE', lock, held[3])
    left = tonumber(held[3])
  end
  return {found, held[2], held[3], left, held[4], held[5]}
end

local time = redis.call('TIME')
local fence = next_fence(counter, time)
local acquired = string.format('%.0f', time[1] * 1000 + math.floor(time[2] / 1000))

redis.call('HSET', lock, 'token', token, 'fence', fence, 'ttl', ttl, 'owner', owner,
  'acquired', acquired, 'attempt', attempt)
redis.call('PEXPIRE', lock, ttl)
return {'granted', fence, ttl, tonumber(ttl), owner, acquired}
