// Swagger UI over the service's own document, in whose order the operations stand; made ready to be tried: a token and a
// key of this page's own, so that no two pages share a lease or an order, and the scope of the toy shop.

const TRY = `**Try these in order:** open a call, press *Try it out*, then *Execute*.

1. *Create a lock*, then again with an empty \`Lock-Token\`: 409, and who holds it.
2. *Renew a lock*, *Release a lock*.
`;
const TRY_SHOP = `3. *Create an order*, then the same again: still one order, and the second response is a replay.
4. *Look at a record*: what keylatch keeps of the key of that order.
`;

const page = [...crypto.getRandomValues(new Uint32Array(2))].join('-');
const own = (text) => text.replaceAll('swagger-example-token-0001', `swagger-token-${page}`)
  .replaceAll('swagger-example-key-0001', `swagger-key-${page}`);

/** Whether the service asks nobody who they are. */
async function isOpen() {
  const response = await fetch('../console/glance');
  return response.ok && (await response.json()).identity === null;
}

async function prepare(text) {
  const spec = JSON.parse(own(text));
  const { info, paths, components } = spec;
  spec.servers[0].url = './';
  const shop = paths['/v1/orders'];
  info.description = `${TRY}${shop ? TRY_SHOP : ''}\n${info.description}`;
  if (shop) {
    const { Key, Method, Path, 'beginIdempotency.key': BeginKey } = components.parameters;
    Key.example = BeginKey.example = components.parameters.IdempotencyKey.example;
    Object.assign(Method, { example: 'POST' });
    Object.assign(Path, { example: '/v1/orders' });
  }
  // A padlock is for a service that has identities.
  if (await isOpen()) {
    delete components.securitySchemes;
    for (const operation of Object.values(paths).flatMap(Object.values)) delete operation.security;
  }
  return JSON.stringify(spec);
}

window.onload = () => {
  window.ui = SwaggerUIBundle({
    url: '../openapi.json',
    dom_id: '#swagger-ui',
    deepLinking: true,
    defaultModelsExpandDepth: 0,
    validatorUrl: 'none',
    responseInterceptor: async (response) => {
      if (response.url.endsWith('/openapi.json')) response.text = await prepare(response.text);
      return response;
    },
  });
};

const night = matchMedia('(prefers-color-scheme: dark)');
night.onchange = () => document.documentElement.classList.toggle('dark-mode', night.matches);
night.onchange();
