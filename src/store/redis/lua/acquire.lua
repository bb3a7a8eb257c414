--- acquire
-- Grants a lock, or says who holds it and keeps a place in line. The same token again is the same
-- grant, or keeps the same place.
--
-- KEYS  1 to 4 the lock and its line   5 the bucket's fencing counter
-- ARGV  1 token hash   2 TTL in ms   3 owner, '' for none   4 attempt   5 for how many ms to keep a
--       place, '' for none   6 the channel for turns
-- Gives {'granted' | 'repeated', fence, ttl, pttl, owner, acquired}
--       {'held', fence, ttl, pttl, owner, acquired, waiting, ahead}, with nil for what is known of a
--       holder when the lock is free for the first in line

local token, ttl, owner, attempt, place, channel = unpack(ARGV)

local held = redis.call('HMGET', lock, 'token', 'fence', 'ttl', 'owner', 'acquired', 'attempt')

local function view(found, ahead)
  local left = redis.call('PTTL', lock)
  if left < 0 then
    -- Somebody took the expiry away (PERSIST). A lock without one would be held for ever.
    redis.call('PEXPIRE', lock, held[3])
    left = tonumber(held[3])
  end
  return {found, held[2], held[3], left, held[4], held[5], waiting, ahead}
end

if held[1] == token then
  if held[6] ~= attempt then
    -- Two attempts share the grant now, so neither may withdraw it.
    redis.call('HSET', lock, 'attempt', '')
  end
  leave(token)
  return view('repeated')
end

local ahead = ahead_of(token)
if held[1] or ahead > 0 then
  if place ~= '' then
    join(token, attempt, place)
  end
  if held[1] then
    return view('held', ahead)
  end
  call_first(channel)
  return {'held', false, false, false, false, false, waiting, ahead}
end

leave(token)
local fence, acquired = next_fence(KEYS[5], time), whole(now)
redis.call('HSET', lock, 'token', token, 'fence', fence, 'ttl', ttl, 'owner', owner,
  'acquired', acquired, 'attempt', attempt)
redis.call('PEXPIRE', lock, ttl)
return {'granted', fence, ttl, tonumber(ttl), owner, acquired}
