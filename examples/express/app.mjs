// Payments that are made once, in Express, behind the gateway of keylatch.
//
//   npm install
//   node app.mjs
//   keylatch --config keylatch.toml
//   curl -i localhost:7070/payments -H 'Idempotency-Key: pay-17' -H 'Content-Type: application/json' -d '{"cents":1999}'
//
// Sent twice, the same request makes one payment, and reads the same answer.

import express from 'express';

const app = express();
const payments = [];

app.use(express.json());

app.post('/payments', (request, response) => {
  if (!Number.isSafeInteger(request.body?.cents)) {
    return response.status(422).json({ error: 'cents is a whole number' });
  }
  // Hand the fencing token to whatever makes the payment: it refuses a run that another one has overtaken.
  const fence = request.get('Idempotency-Fence');
  payments.push({ cents: request.body.cents, fence });
  return response.status(201).json({ number: payments.length, cents: request.body.cents });
});

app.get('/payments', (_, response) => response.json(payments.map(({ cents }) => cents)));

app.listen(Number(process.env.PORT ?? 3000), '127.0.0.1');
