--- record_find
-- Reports a record.
--
-- KEYS  1 the record
-- Gives {'found', fence, …} | {'absent'}

local record = read()
if not record then
  return {'absent'}
end
return view('found', record, true)
