--- record
-- What the commands on a record share. This stands before each of them.
--
-- A record is a hash that Redis expires: stage, at, end, token, fingerprint, fence, attempts,
-- begun, lease, retention, on_crash. What `at` and `end` are depends on the stage:
--
--   in-flight  at: when its lease is over
--   done       at: when it was completed    end: the stored response
--   unknown    at: since when it is so      end: the reason
--
-- Times are in ms since 1970 by the clock of this server, spans are in ms.
--
-- KEYS  1 the record
-- Gives {found} | {found, fence, attempts, begun, pttl, stage, at, end}
--       where `at` of a record in flight is what is left of its lease, and the end is left out when
--       it is the caller's own

local key = KEYS[1]
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

local function finish(record, stage, last, span)
  keep(record, span)
  redis.call('HSET', key, 'stage', stage, 'at', whole(now), 'end', last)
  record.stage, record.at, record.reason = stage, now, nil
end

