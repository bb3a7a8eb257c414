--- acquire
-- Grants a lock, or reports its holder and keeps a queue entry. The same token again is the same
-- grant, or keeps the same entry.
--
-- KEYS  1 to 4 the lock and its queue   5 the bucket's fencing counter
-- ARGV  1 token hash   2 TTL in ms   3 owner, '' for none   4 attempt   5 for how many ms to keep
--       a queue entry, '' for none   6 the channel for wakeups   7 the channel for changes, '' if the
--       lock is not watched
-- Gives {'granted' | 'repeated' | 'held', fence, ttl, pttl, owner, acquired, waiting, ahead}, with nil
--       for the fields of a holder when the lock is free for the first entry of the queue

local token, ttl, owner, attempt, lasts, channel, changes = unpack(ARGV)

-- Keeps an entry: the one of that rank, or a new one at the end.
local function join(rank)
  local function last_score(set)
    return redis.call('ZRANGE', set, -1, -1, 'WITHSCORES')[2] or 0
  end
  local expires = millis(redis.call('TIME')) + lasts
  local latest = whole(math.max(expires, last_score(places)))
  if not rank then
    redis.call('ZADD', line, whole(last_score(line) + 1), token)
    waiting = waiting + 1
  end
  -- A Redis whose memory is full takes this command, and then lets the script write the rest: no
  -- waiter loses its entry for want of memory.
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
elseif lasts ~= '' then
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
  wake_first(channel)
  return {'held', false, false, false, false, false, waiting, ahead}
end

if is_mine and held[6] ~= attempt then
  -- Two attempts share the grant now, so neither may withdraw it.
  redis.call('HSET', lock, 'attempt', '')
end
local left = redis.call('PTTL', lock)
if left < 0 then
  -- Another client took the expiry away (PERSIST). A lock without one would be held for ever.
  redis.call('PEXPIRE', lock, held[3])
  left = tonumber(held[3])
end
return {is_mine and 'repeated' or 'held', held[2], held[3], left, held[4], held[5], waiting, ahead}
