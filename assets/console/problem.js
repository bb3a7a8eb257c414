// The commands on the page of a problem: for the service that shows it, with a button that copies them.

import { service } from './api.js';
import { copyButton } from './dom.js';

for (const code of document.querySelectorAll('pre code')) {
  code.textContent = code.textContent.replaceAll('localhost:7070', service.replace('http://', ''));
  code.parentElement.after(copyButton(code.textContent));
}
