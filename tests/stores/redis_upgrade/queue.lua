--- queue
-- The waiters of a lock, first come, first served. This stands before the commands on a queue. A
-- queue is three keys, which Redis expires with the last entry:
--
--   line      sorted set of token hashes, by ticket: a later entry has a larger ticket
--   places    sorted set of the same, by when the entry expires, in ms since 1970 by this server
--   attempts  hash from the same to the attempt that renewed the entry last
--
-- KEYS  1 the lock   2 line   3 places   4 attempts
-- Gives {'again'} when it has dropped so many entries that the command has to be called again

local lock, line, places, attempts = KEYS[1], KEYS[2], KEYS[3], KEYS[4]

local function whole(number)
  return string.format('%.0f', number)
end

local function millis(time)
  return time[1] * 1000 + math.floor(time[2] / 1000)
end

-- How many entries there are. The next command drops those that have expired.
local waiting = redis.call('ZCARD', line)

local function drop(tokens)
  redis.call('ZREM', line, unpack(tokens))
  redis.call('ZREM', places, unpack(tokens))
  redis.call('HDEL', attempts, unpack(tokens))
  waiting = redis.call('ZCARD', line)
end

if waiting > 0 then
  local now = whole(millis(redis.call('TIME')))
  local lost = redis.call('ZRANGEBYSCORE', places, '-inf', now, 'LIMIT', 0, 1000)
  if lost[1] then
    drop(lost)
  end
  if lost[1000] then
    -- There may be more. Other commands run on this Redis before those are dropped.
    return {'again'}
  end
  if waiting ~= redis.call('ZCARD', places) then
    -- A Redis that evicts keys took one of them. A waiter makes its entry again within seconds.
    redis.call('DEL', line, places, attempts)
    waiting = 0
  end
end

-- Wakes the first waiter of a free lock. The command does not depend on it, since a user may be
-- forbidden to publish.
local function wake_first(channel)
  if waiting > 0 then
    redis.pcall('PUBLISH', channel, redis.call('ZRANGE', line, 0, 0)[1] .. lock)
  end
end

