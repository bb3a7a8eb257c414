--- read
-- Reads rows.
--
-- KEYS  the rows, or counters
-- Gives {seconds, microseconds, …} with for each key its string, nil where there is none, and {} for a key of
--       another type, which is another program's

local reply = redis.call('TIME')
for at, key in ipairs(KEYS) do
  local row = redis.pcall('GET', key)
  if type(row) == 'table' then
    if not string.find(row.err, 'WRONGTYPE') then
      return row
    end
    row = {}
  end
  reply[at + 2] = row
end
return reply
