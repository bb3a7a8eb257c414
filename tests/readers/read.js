// What Node's two readers and qs make of forms. Media types are read by none of them.
const { readFileSync } = require('node:fs');
const querystring = require('node:querystring');
const qs = require(`${process.argv[2]}/qs`);

/** The members in the order of their names, which means nothing. */
function sorted(value) {
  if (Array.isArray(value)) return value.map(sorted);
  if (value === null || typeof value !== 'object') return value;
  return Object.entries(value)
    .map(([name, member]) => [name, sorted(member)])
    .sort(([one], [other]) => (one < other ? -1 : 1));
}

function read(text) {
  const params = new URLSearchParams(text);
  const all = Object.fromEntries([...params.keys()].map((name) => [name, params.getAll(name)]));
  return [all, querystring.parse(text), qs.parse(text)].map(sorted);
}

const cases = JSON.parse(readFileSync(0));
console.log(JSON.stringify(cases.map(([kind, text]) => (kind === 'form' ? read(text) : null))));
