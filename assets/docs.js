// Swagger UI over the service's own document, in whose order the operations stand.
window.onload = () => {
  window.ui = SwaggerUIBundle({
    url: '../openapi.json',
    dom_id: '#swagger-ui',
    deepLinking: true,
    validatorUrl: 'none',
  });
};
