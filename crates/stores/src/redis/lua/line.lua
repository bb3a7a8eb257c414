--- line
-- Who waits for a lock, in the order in which they came. This stands before the steps that know of
-- lines. A line is three keys, which Redis expires with the last place in it:
--
--   line      sorted set of token hashes, by ticket: whoever came later has a larger one
--   places    sorted set of the same, by when the place is lost, in ms since 1970 by this server
--   attempts  hash from the same to the attempt that was the last to ask for the place
--
-- KEYS  1 the lock   2 line   3 places   4 attempts
-- Gives {'again'} when it has dropped so many places that the step has to be called again

local lock, line, places, attempts = KEYS[1], KEYS[2], KEYS[3], KEYS[4]

local function whole(number)
  return string.format('%.0f', number)
end

local function millis(time)
  return time[1] * 1000 + math.floor(time[2] / 1000)
end

-- How many wait. A place that was lost is dropped once, by whoever comes next.
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
    -- There may be more. Others have their turn at Redis before those are dropped.
    return {'again'}
  end
  if waiting ~= redis.call('ZCARD', places) then
    -- A Redis that evicts keys took one of them. Whoever waits soon asks again.
    redis.call('DEL', line, places, attempts)
    waiting = 0
  end
end

-- Says on a channel whose turn it is at a lock that is free. The step is good without that, which a
-- user may be forbidden.
local function call_first(channel)
  if waiting > 0 then
    redis.pcall('PUBLISH', channel, redis.call('ZRANGE', line, 0, 0)[1] .. lock)
  end
end

