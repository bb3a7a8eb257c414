--- read
-- Reads rows.
--
-- KEYS  the rows, or counters
-- Gives {seconds, microseconds, …} with for each key its string, nil where there is none, or, for a hash of
--       a version before this, {pttl, field, value, …}

local reply = redis.call('TIME')
for at, key in ipairs(KEYS) do
  local row = redis.pcall('GET', key)
  if type(row) == 'table' then
    row = redis.pcall('HGETALL', key)
    if row.err then
      row = {}
    else
      table.insert(row, 1, redis.call('PTTL', key))
    end
  end
  reply[at + 2] = row
end
return reply
