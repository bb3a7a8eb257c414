--- redlock
-- What one node of several has to say of a lock. This stands before the steps of Redlock. A lock's
-- hash has fields that it has not on one Redis:
--
--   fence     the grant's fencing token, '0' until the grant is settled; and with it the owner, and
--             by which attempt it was proposed
--   floor     the bucket's counter when this node gave the lock: a fencing token of the grant that is
--             not above it is not taken, since an earlier grant had one as high
--   promised  the highest ballot heard of: nothing is taken under a lower one
--   accepted  the ballot under which the fencing token was taken
--
-- Ballots are decimal numbers of one length, so that they compare as texts.
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

-- Promises to take nothing under a lower ballot, unless a higher one was promised already.
local function promise(ballot)
  if ballot > (redis.call('HGET', lock, 'promised') or '') then
    redis.call('HSET', lock, 'promised', ballot)
  end
end

-- What every step gives: {found, counter, microseconds since 1970, pttl, token, fence, ttl, owner,
-- acquired, by, promised, accepted}, with nil for what is known of a holder when there is none.
local function vote(found)
  local time = redis.call('TIME')
  local held = redis.call('HMGET', lock, 'token', 'fence', 'ttl', 'owner', 'acquired', 'by',
    'promised', 'accepted')
  local micros = whole(time[1] * 1000000 + time[2])
  return {found, whole(last_fence()), micros, redis.call('PTTL', lock), unpack(held)}
end

