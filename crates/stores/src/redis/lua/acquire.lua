--- acquire
-- Grants a lock, or says who holds it and keeps a place in line. The same token again is the same
-- grant, or keeps the same place.
--
-- KEYS  1 to 4 the lock and its line   5 the bucket's fencing counter
-- ARGV  1 token hash   2 TTL in ms   3 owner, '' for none   4 attempt   5 for how many ms to keep a
--       place, '' for none   6 the channel for turns   7 the channel for changes, '' if nobody watches
-- Gives {'granted' | 'repeated' | 'held', fence, ttl, pttl, owner, acquired, waiting, ahead}, with nil
--       for what is known of a holder when the lock is free for the first in line

local token, ttl, owner, attempt, place, channel, changes = unpack(ARGV)

-- Keeps a place: the one of that rank, or one at the end.
local function join(rank)
  local function last_score(set)
    return redis.call('ZRANGE', set, -1, -1, 'WITHSCORES')[2] or 0
  end
  local expires = millis(redis.call('TIME')) + place
  local latest = whole(math.max(expires, last_score(places)))
  if not rank then
    redis.call('ZADD', line, whole(last_score(line) + 1), token)
    waiting = waiting + 1
  end
  -- A Redis whose memory is full takes this, and having taken it lets the script go on, so that
  -- nobody loses a place for want of memory.
  redis.call('PEXPIREAT', line, latest)
  redis.call('ZADD', places, whole(expires), token)
  redis.call('HSET', attempts, token, attempt)
  redis.call('PEXPIREAT', places, latest)
  redis.call('PEXPIREAT', attempts, latest)
end

local held = redis.call('HMGET', lock, 'token', 'fence', 'ttl', 'owner', 'acquired', 'attempt')
local rank = waiting > 0 and redis.call('ZRANK', line, token)
local ahead = rank or waiting
local is_free, is_mine = not held[1], held[1] == token

if is_mine or is_free and ahead == 0 then
  if rank then
    drop({token})
  end
elseif place ~= '' then
  join(rank)
end

if is_free and ahead == 0 then
  local time = redis.call('TIME')
  local fence, acquired = next_fence(KEYS[5], time), whole(millis(time))
  redis.call('HSET', lock, 'token', token, 'fence', fence, 'ttl', ttl, 'owner', owner,
    'acquired', acquired, 'attempt', attempt)
  redis.call('PEXPIRE', lock, ttl)
  if changes ~= '' then
    redis.pcall('PUBLISH', changes,
      table.concat({'acquired', fence, ttl, acquired, waiting, owner, lock}, '\n'))
  end
  return {'granted', fence, ttl, tonumber(ttl), owner, acquired}
end
if is_free then
  call_first(channel)
  return {'held', false, false, false, false, false, waiting, ahead}
end

if is_mine and held[6] ~= attempt then
  -- Two attempts share the grant now, so neither may withdraw it.
  redis.call('HSET', lock, 'attempt', '')
end
local left = redis.call('PTTL', lock)
if left < 0 then
  -- Somebody took the expiry away (PERSIST). A lock without one would be held for ever.
  redis.call('PEXPIRE', lock, held[3])
  left = tonumber(held[3])
end
return {is_mine and 'repeated' or 'held', held[2], held[3], left, held[4], held[5], waiting, ahead}
