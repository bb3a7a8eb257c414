--- fence
-- The next fencing token of a bucket. This stands before the commands that grant.
--
-- The time is a floor under the counter, for the day on which the counter is lost. Numbers have 53
-- bits here, enough for microseconds until 2255; tostring would cut them to 14 digits.
local function next_fence(counter, time)
  local fence = time[1] * 1000000 + time[2]
  local last = redis.call('GET', counter)
  if last and last + 1 > fence then
    fence = last + 1
  end
  fence = string.format('%.0f', fence)
  redis.call('SET', counter, fence)
  return fence
end

