
-- Carries out changes of rows together, or none of them: if each row still has the version that its change
-- names, and this server's clock is within each guard. All is in this one step.
--
-- Redis undoes nothing of a script. What it refuses for its memory, its disk or its replicas it refuses at
-- the first write, before anything is written; from then on it takes the rest. So a change that fails
-- behind others is one that this user may not make, and the reply says that.
--
-- Gives {seconds, microseconds, …} with for each change 0 if none was carried out, 1 if all were, 2 if all
-- were and a client relies on this one, or the code of the error for which Redis refused this one

local function each(visit)
  local key = 1
  for at = 3, #ARGV, 9 do
    visit(KEYS[key], KEYS[key + 1], unpack(ARGV, at, at + 8))
    key = key + keys_each
  end
end

local are_met, refusal = true, nil
each(function(row, counter, was, _, from, till, _, given)
  local met, other = is_met(row, counter, was, from, till, given)
  are_met = are_met and met
  refusal = refusal or other and other.err and other
end)

each(function(row, counter, was, new, _, _, lasts, given, relied, said)
  local outcome = 0
  if are_met and not refusal then
    -- Another change of this step may have raised the bucket's counter further.
    local fence = is_above(given, counter) and tonumber(given)
    refusal = carry_out(row, counter, nil, was, new, lasts, fence, said, '')
    outcome = relied == '1' and 2 or 1
  end
  if refusal then
    outcome = string.match(refusal.err, '%u%u+') or 'ERR'
  end
  reply[#reply + 1] = outcome
end)
if refusal and not has_written then
  return refusal
end
return reply
