/**
 * Submits a form, or sends a request, once, however often it is tried.
 *
 * All tries of one intent carry the same `Idempotency-Key`, so that a service behind keylatch runs
 * the first and answers the others from what it kept. The key is in `sessionStorage` before the
 * first byte is sent, and there it stays
 *
 * - after a network error, also in the middle of the answer, and after an abort,
 * - after a 5xx, and after 401, 403, 407, 408, 421, 425, 426 and 429,
 * - after a problem of the service with `retry` `same-key` (such as 409 `request-in-progress`; see
 *   `Retry-After`) or `never` (409 `outcome-unknown`: an operator has to find out what happened),
 * - over a reload, and in a tab that is a copy of this one.
 *
 * The next try after that is another try of the same intent. With content that was edited since,
 * the service refuses it (422 `idempotency-key-reused`), since the first content may have been
 * carried out; that refusal is for the user to see, and what comes after it is a new intent.
 *
 * A success or any other refusal (4xx, or a problem with `retry` `new-key`) is the last word: the
 * next call is a new intent, under a new key.
 *
 * Nothing is sent again by itself. Where `sessionStorage` is full or forbidden, keys are kept in
 * memory and do not outlive the page. A page that comes out of the back-forward cache waits for
 * nothing that was on its way when it was left, and its `idempotency_key` fields get new values, but
 * for keys that the service issued; an
 * intent that had its last word gets a new key there as anywhere, and one that had not keeps its.
 *
 * @module
 */

/** What {@link fetchOnce} takes beside what `fetch` does. */
export interface OnceInit extends RequestInit {
  /**
   * Tells intents apart that have the same method and URL: a cart's id, for one. Without it, a
   * page has one intent at a time for each method and URL.
   */
  intent?: string;
  /** The key of a new intent, where the service issued one for it. Without it the module makes one. */
  key?: string;
}

/**
 * Like `fetch`, once for each intent.
 *
 * While a request of the intent is on its way, a call with the same headers and body sends nothing
 * and is given the same answer; one with others is sent under the same key, for the service to refuse
 * (422 `idempotency-key-reused`). Two carts, or two uploads, at one URL need an `intent` each. Bodies
 * are the same byte by byte: of a form its fields in their order, with the names, types and bytes of
 * its files. Nothing is the same as a stream, and two `Request`s of a `FormData` differ. A call that
 * sends nothing ignores its `signal`.
 *
 * The answer is given once it has arrived whole, so this is not for streams. Another origin has to
 * allow the header `Idempotency-Key` (CORS); a request with `mode: 'no-cors'` has no key.
 *
 * @returns The answer, whatever its status; each caller has its own.
 * @throws What `fetch` throws: it is unknown whether the request was carried out.
 */
export function fetchOnce(url: RequestInfo | URL, init?: OnceInit): Promise<Response>;

/**
 * Sends by {@link fetchOnce} what the browser would send for a form with the method `post`: its
 * action, its fields and those of the button, urlencoded or multipart. Without `data-intent` on the
 * form, the intent is named by the page's path and query and the form's id, or else its place among
 * the page's forms.
 *
 * ```js
 * form.addEventListener('submit', async (event) => {
 *   event.preventDefault();
 *   const response = await submitOnce(form, event.submitter);
 *   if (response.redirected) location.assign(response.url);
 * });
 * ```
 *
 * The form is `aria-busy` while its request is on its way. Buttons stay enabled: a second click
 * sends nothing. A hidden field `idempotency_key` with a value of the server's own making lets the
 * same form work without JavaScript; here the header takes its place.
 *
 * @param submitter The button that submits, as `SubmitEvent.submitter` has it.
 * @returns The answer, whatever its status.
 * @throws What `fetch` throws: it is unknown whether the request was carried out. And a `TypeError`
 *   where the form's method is `get`.
 */
export function submitOnce(
  form: HTMLFormElement,
  submitter?: HTMLElement | null,
): Promise<Response>;
