-- What the scripts that change rows share.
--
-- A row is a string, 16 bytes of version and then what only keylatch understands. Redis deletes it when
-- nothing is in it any more. A key of another type is another program's, and stays as it is.
--
-- The bucket's counter is the last fencing token that the bucket gave. A change that gives one has to be
-- above it, since the key may have had another row before.
--
-- The bucket's index has the unfinished records: a sorted set of their names by when Redis expires them.
--
-- Times are in microseconds since 1970: numbers have 53 bits here, enough until 2255, and tostring would
-- cut them to 14 digits.
--
-- KEYS  for each change: the row, the bucket's counter, and of a record the bucket's index
-- ARGV  1 how many keys a change has   2 the channel for changes   then for each change:
--       its row's version, '' for no row   the new row   from when and until when it may be carried out
--       until when anything is in the row   the fencing token that it gives, '' for none
--       '1' if a client relies on it   what to publish, '' for nothing   '1' for an unfinished record

local keys_each, channel = tonumber(ARGV[1]), ARGV[2]
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
local reply = {time[1], time[2]}
local has_written = false

local function whole(number)
  return string.format('%.0f', number)
end

-- The error of a command, or nil.
local function failure(...)
  local answer = redis.pcall(...)
  if type(answer) == 'table' and answer.err then
    return answer
  end
  has_written = true
end

-- Puts a record into the index, or moves it there. Those that Redis has expired go, and so does an index of
-- which all have.
local function enlist(index, name, span)
  local now_millis = math.floor(now / 1000)
  local err = failure('ZADD', index, whole(now_millis + span), name)
  if err then
    return err
  end
  local gone = redis.call('ZRANGEBYSCORE', index, '-inf', '(' .. whole(now_millis), 'LIMIT', 0, 100)
  if #gone > 0 then
    redis.call('ZREM', index, unpack(gone))
  end
  if redis.call('PTTL', index) < span then
    redis.call('PEXPIRE', index, whole(span))
  end
end

-- Writes a row; the row itself comes last, so that a change that fails has written nothing that counts.
local function put(row, counter, index, new, span, fence, unfinished)
  local err = fence and failure('SET', counter, whole(fence))
  if err then
    return err
  end
  if index and unfinished and span > 0 then
    err = enlist(index, string.sub(row, -43), span)
    if err then
      return err
    end
  end
  if span == 0 then
    err = failure('DEL', row)
  else
    err = failure('SET', row, new, 'PX', whole(span))
  end
  if index and not unfinished and not err then
    redis.call('ZREM', index, string.sub(row, -43))
  end
  return err
end

-- Whether a fencing token, '' for none, is above all that the bucket gave. Where the counter is not there, it
-- may have been lost, with tokens up to this clock. Then it begins with the clock, and the token is refused: the
-- process that gave it may have thought the clock to be earlier. Gives also the error for which Redis refused
-- to begin, or nil.
local function is_above(given, counter)
  if given == '' then
    return true
  end
  local last = redis.call('GET', counter)
  if not last then
    return false, failure('SET', counter, whole(now))
  end
  return tonumber(given) > tonumber(last)
end

-- Whether a change may be carried out. If not because another row is there, or none, also a table of it; and
-- if not because Redis refused a command, its error.
local function is_met(row, counter, was, from, till, given)
  local found = redis.pcall('GET', row)
  if type(found) == 'table' then
    return false
  end
  if (found and string.sub(found, 1, 16) or '') ~= was then
    return false, {found}
  end
  if now < tonumber(from) or now >= tonumber(till) then
    return false
  end
  return is_above(given, counter)
end

-- Carries out a change. Gives the error for which Redis refused it, or nil.
local function carry_out(row, counter, index, was, new, lasts, fence, said, unfinished)
  local span = math.ceil((lasts - now) / 1000)
  if span < 1 then
    -- Not math.max: that may leave -0, which is no number to Redis.
    span = 0
  end
  local err = put(row, counter, index, new, span, fence, unfinished == '1')
  if err and was ~= '' and string.find(err.err, 'OOM') then
    -- A Redis whose memory is full takes this command, and then lets the script write the rest: no lease
    -- ends, no waiter loses its entry and no response is lost for want of memory.
    local left = redis.call('PTTL', row)
    redis.call('PEXPIRE', row, whole(left > 0 and left or span + 1))
    err = put(row, counter, index, new, span, fence, unfinished == '1')
  end
  if not err and said ~= '' then
    -- The change does not depend on it, since a user may be forbidden to publish.
    redis.pcall('PUBLISH', channel, said)
  end
  return err
end
