--- redlock
-- A lock on one of several nodes. This stands before the commands of Redlock. The words are those
-- of Paxos, and internals/redlock.md has the proofs. A lock's hash has fields here that it has
-- not on one Redis:
--
--   fence     the accepted fencing token, '0' until the node accepts one; and with it the owner,
--             and `by`: the attempt that first proposed it
--   floor     the bucket's counter when this node gave the lock. The node accepts only a fencing
--             token above it, since an earlier grant had one as high
--   promised  the highest ballot that the node promised: it accepts nothing under a lower one
--   accepted  the ballot under which the node accepted the fencing token
--
-- Ballots are decimal numbers of one length, so that they compare as texts. Counters never fall.
--
-- KEYS  1 the lock   2 the bucket's fencing counter

local lock, counter = KEYS[1], KEYS[2]

-- Numbers have 53 bits here; tostring would cut them to 14 digits.
local function whole(number)
  return string.format('%.0f', number)
end

local function last_fence()
  return tonumber(redis.call('GET', counter) or 0)
end

-- Promises to accept nothing under a lower ballot, unless a higher one was promised already.
local function promise(ballot)
  if ballot > (redis.call('HGET', lock, 'promised') or '') then
    redis.call('HSET', lock, 'promised', ballot)
  end
end

-- The reply to every command: {found, counter, microseconds since 1970, pttl, token, fence, ttl,
-- owner, acquired, by, promised, accepted}, with nil for the fields of a holder when there is none.
local function report(found)
  local time = redis.call('TIME')
  local held = redis.call('HMGET', lock, 'token', 'fence', 'ttl', 'owner', 'acquired', 'by',
    'promised', 'accepted')
  local micros = whole(time[1] * 1000000 + time[2])
  return {found, whole(last_fence()), micros, redis.call('PTTL', lock), unpack(held)}
end

