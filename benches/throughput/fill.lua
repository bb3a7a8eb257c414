-- Holds, for a day, the locks whose names end in a number below ARGV[3], each as acquire.lua leaves it.
--
-- ARGV  1 what the keys begin with   2 token hash   3 how many

local prefix, token, count = ARGV[1], ARGV[2], tonumber(ARGV[3])

for number = 0, count - 1 do
  local lock = string.format('%s%012d', prefix, number)
  redis.call('HSET', lock, 'token', token, 'fence', '1779900000000000', 'ttl', '30000',
    'owner', '', 'acquired', '1779900000000', 'attempt', '9779900000000000000')
  redis.call('PEXPIRE', lock, 86400000)
end
