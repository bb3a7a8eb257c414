-- What the steps on a record share. This stands before each of them.
--
-- A record is a hash that Redis expires: stage, at, end, token, fingerprint, fence, attempts,
-- begun, lease, retention, on_crash. What `at` and `end` are depends on the stage:
--
--   in-flight  at: when its lease is over
--   done       at: when it was done         end: what is kept of the answer
--   unknown    at: since when it is         end: why
--
-- Times are in ms since 1970 by the clock of this server, spans are in ms.
--
-- KEYS  1 the record
-- Gives {found} | {found, fence, attempts, begun, pttl, stage, at, end}
--       where a record in flight has what is left of its lease for `at`, and the end is left out
--       when it is the caller's own

local key = KEYS[1]
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)

local function whole(number)
  return string.format('%.0f', number)
end

-- The record as it stands now, or nil. A run whose lease is over may be run again, or nobody knows
-- how it ended.
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

-- Whether the token is running it now.
local function is_run_by(record, token)
  return record.stage == 'in-flight' and not record.lease_over and record.token == token
end

-- What it came to: what is kept of the answer, or why nobody knows.
local function ending(record)
  return record.reason or redis.call('HGET', key, 'end')
end

local function view(found, record, with_end)
  local at, last, left = record.at, nil, nil
  if record.stage == 'in-flight' then
    at = math.max(at - now, 0)
    if not record.lease_over then
      -- If it were done now, it would be kept for its retention.
      left = record.retention
    end
  elseif with_end then
    last = ending(record)
  end
  left = left or record.pttl or redis.call('PTTL', key)
  return {found, record.fence, record.attempts, record.begun, left, record.stage, at, last}
end

-- Lets a record that is there be forgotten after a span. A script calls this before it writes: a
-- Redis whose memory is full takes it, and having taken it lets the script go on, so that no lease
-- ends and no answer is lost for want of memory.
local function keep(record, span)
  redis.call('PEXPIRE', key, whole(span))
  record.pttl = span
end

-- Writes what is there already. A step that repeats a promise does this, so that whoever waits behind
-- it for the replicas waits until they have the record.
local function rewrite()
  local left = redis.call('PTTL', key)
  if left > 0 then
    redis.call('PEXPIRE', key, whole(left))
  end
end

local function finish(record, stage, last, span)
  keep(record, span)
  redis.call('HSET', key, 'stage', stage, 'at', whole(now), 'end', last)
  record.stage, record.at, record.reason = stage, now, nil
end

