--- line
-- Who waits for a lock, in the order in which they came. This stands before the steps that know of
-- lines. A line is three keys, which Redis expires with the last place in it:
--
--   line      sorted set of token hashes, by ticket: whoever came later has a larger one
--   places    sorted set of the same, by when the place is lost, in ms since 1970 by this server
--   attempts  hash from the same to the attempt that was the last to ask for the place
--
-- KEYS  1 the lock   2 line   3 places   4 attempts

local lock, line, places, attempts = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)

local function whole(number)
  return string.format('%.0f', number)
end

local function drop(tokens)
  -- Lua's stack takes some 8,000 arguments.
  for first = 1, #tokens, 1000 do
    local last = math.min(first + 999, #tokens)
    redis.call('ZREM', line, unpack(tokens, first, last))
    redis.call('ZREM', places, unpack(tokens, first, last))
    redis.call('HDEL', attempts, unpack(tokens, first, last))
  end
end

-- How many wait. A place that was lost is dropped once, by whoever comes next.
local waiting = redis.call('ZCARD', line)
if waiting > 0 then
  drop(redis.call('ZRANGEBYSCORE', places, '-inf', whole(now)))
  waiting = redis.call('ZCARD', line)
  if waiting ~= redis.call('ZCARD', places) then
    -- A Redis that evicts keys took one of them. Whoever waits soon asks again.
    redis.call('DEL', line, places, attempts)
    waiting = 0
  end
end

-- How many are before a token: all, if it has no place.
local function ahead_of(token)
  return waiting > 0 and redis.call('ZRANK', line, token) or waiting
end

local function leave(token)
  if waiting > 0 then
    drop({token})
    waiting = redis.call('ZCARD', line)
  end
end

local function last_score(set)
  return tonumber(redis.call('ZRANGE', set, -1, -1, 'WITHSCORES')[2] or 0)
end

-- Keeps a place for a span: the one that the token has, or one at the end.
local function join(token, attempt, span)
  local expires = now + span
  local latest = whole(math.max(expires, last_score(places)))
  if not redis.call('ZSCORE', line, token) then
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

-- Says on a channel whose turn it is at a lock that is free. The step is good without that, which a
-- user may be forbidden.
local function call_first(channel)
  if waiting > 0 then
    redis.pcall('PUBLISH', channel, redis.call('ZRANGE', line, 0, 0)[1] .. lock)
  end
end

