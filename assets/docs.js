// Swagger UI over the service's own document, in the order in which a reader needs the operations.

const PATHS = [
  '/v1/locks/{name}',
  '/v1/locks/{name}/hold',
  '/v1/locks/{name}/events',
  '/v1/locks/{name}/history',
  '/v1/locks/{name}/break',
  '/v1/locks',
  '/v1/idempotency/{key}',
  '/v1/idempotency/{key}/renew',
  '/v1/idempotency/{key}/resolve',
  '/v1/idempotency',
];
// Create, renew, release, and then look.
const METHODS = ['post', 'put', 'patch', 'delete', 'get'];

/** A path that is not in the list comes after those that are, as the document has it. */
function place(operation) {
  const path = PATHS.indexOf(operation.get('path'));
  return [path < 0 ? PATHS.length : path, METHODS.indexOf(operation.get('method'))];
}

window.onload = () => {
  window.ui = SwaggerUIBundle({
    url: '/openapi.json',
    dom_id: '#swagger-ui',
    deepLinking: true,
    validatorUrl: 'none',
    operationsSorter: (one, other) => {
      const [path, method] = place(one);
      const [otherPath, otherMethod] = place(other);
      const isSame = one.get('path') === other.get('path');
      return path - otherPath || (isSame ? method - otherMethod : one.get('path').localeCompare(other.get('path')));
    },
  });
};
