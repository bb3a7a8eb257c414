--- record
-- What the commands on a record share. This stands before each of them.
--
-- A record is a hash that Redis expires: stage, at, end, token, fingerprint, fence, attempts,
-- begun, lease, retention, on_crash, and scope, which versions before it did not write. What `at` and
-- `end` are depends on the stage:
--
--   in-flight  at: when its lease is over
--   done       at: when it was completed    end: the stored response
--   unknown    at: since when it is so      end: the reason
--
-- Times are in ms since 1970 by the clock of this server, spans are in ms.
--
-- The bucket's index has the unfinished records, which are in flight or unknown: a sorted set of their
-- names by when Redis expires them. It has the bucket's slot, so the script that writes a record writes
-- the index.
--
-- KEYS  1 the record   the last one, in commands that change it: the bucket's index
-- Gives {found} | {found, fence, attempts, begun, pttl, stage, at, end}
--       where `at` of a record in flight is what is left of its lease, and the end is left out when
--       it is the caller's own

local key, index = KEYS[1], KEYS[#KEYS]
-- The name is 32 bytes in base64url.
local name = string.sub(key, -43)
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)

local function whole(number)
  return string.format('%.0f', number)
end

-- The record as it is now, or nil. A run whose lease is over may run again, or its outcome is
-- unknown.
local function read()
  local found = redis.call('HMGET', key, 'stage', 'at', 'token', 'fingerprint', 'fence',
    'attempts', 'begun', 'lease', 'retention', 'on_crash')
  if not found[1] then
    return nil
  end
  local record = {
    stage = found[1], at = tonumber(found[2]), token = found[3], fingerprint = found[4],
    fence = found[5], attempts = found[6], begun = found[7], lease = found[8],
    retention = found[9], on_crash = found[10],
  }
  if record.stage == 'in-flight' and record.at <= now then
    record.lease_over = true
    if record.on_crash ~= 'rerun' then
      record.stage, record.reason = 'unknown', 'interrupted'
    end
  end
  return record
end

-- Whether the token has the run now.
local function is_run_by(record, token)
  return record.stage == 'in-flight' and not record.lease_over and record.token == token
end

-- How the run ended: the stored response, or why its outcome is unknown.
local function ending(record)
  return record.reason or redis.call('HGET', key, 'end')
end

local function view(found, record, with_end)
  local at, last, left = record.at, nil, nil
  if record.stage == 'in-flight' then
    at = math.max(at - now, 0)
    if not record.lease_over then
      -- If it were completed now, it would be retained for so long.
      left = record.retention
    end
  elseif with_end then
    last = ending(record)
  end
  left = left or record.pttl or redis.call('PTTL', key)
  return {found, record.fence, record.attempts, record.begun, left, record.stage, at, last}
end

-- Lets a record expire after a span. A script calls this before it writes: a Redis whose memory is
-- full takes this command, and then lets the script write the rest, so that no lease ends and no
-- response is lost for want of memory.
local function keep(record, span)
  redis.call('PEXPIRE', key, whole(span))
  record.pttl = span
end

-- Writes what is there already. A command that repeats a grant or a result does this, so that the
-- wait for replicas behind it lasts until they have the record.
local function rewrite()
  local left = redis.call('PTTL', key)
  if left > 0 then
    redis.call('PEXPIRE', key, whole(left))
  end
end

-- Puts the record into the index, or moves it there, for as long as it is kept. Those that Redis has expired
-- go, and so does an index of which all have. No command is used that the queue does not use, so that a user
-- with the documented permissions has them all.
local function enlist(span)
  redis.call('ZADD', index, whole(now + span), name)
  local gone = redis.call('ZRANGEBYSCORE', index, '-inf', '(' .. whole(now), 'LIMIT', 0, 100)
  if #gone > 0 then
    redis.call('ZREM', index, unpack(gone))
  end
  if redis.call('PTTL', index) < tonumber(span) then
    redis.call('PEXPIRE', index, whole(span))
  end
end

local function delist()
  redis.call('ZREM', index, name)
end

local function finish(record, stage, last, span)
  keep(record, span)
  redis.call('HSET', key, 'stage', stage, 'at', whole(now), 'end', last)
  record.stage, record.at, record.reason = stage, now, nil
  if stage == 'done' then
    delist()
  else
    enlist(span)
  end
end

