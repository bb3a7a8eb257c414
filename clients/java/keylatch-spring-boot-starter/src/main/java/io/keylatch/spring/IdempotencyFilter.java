package io.keylatch.spring;

import io.keylatch.client.Answer;
import io.keylatch.client.Keylatch;
import io.keylatch.client.KeylatchException;
import io.keylatch.client.Once;
import io.keylatch.client.ProblemException;
import io.keylatch.client.Run;
import io.keylatch.client.UnreachableException;
import jakarta.servlet.AsyncEvent;
import jakarta.servlet.AsyncListener;
import jakarta.servlet.FilterChain;
import jakarta.servlet.ReadListener;
import jakarta.servlet.ServletException;
import jakarta.servlet.ServletInputStream;
import jakarta.servlet.http.HttpServletRequest;
import jakarta.servlet.http.HttpServletRequestWrapper;
import jakarta.servlet.http.HttpServletResponse;
import java.io.BufferedReader;
import java.io.ByteArrayInputStream;
import java.io.IOException;
import java.io.InputStreamReader;
import java.nio.charset.StandardCharsets;
import java.security.MessageDigest;
import java.security.NoSuchAlgorithmException;
import java.time.Duration;
import java.util.Base64;
import java.util.Collection;
import java.util.Collections;
import java.util.HashSet;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Locale;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.atomic.AtomicBoolean;
import java.util.function.Supplier;
import java.util.regex.Matcher;
import java.util.regex.Pattern;
import org.springframework.core.Ordered;
import org.springframework.http.server.ServletServerHttpRequest;
import org.springframework.util.AntPathMatcher;
import org.springframework.web.filter.OncePerRequestFilter;
import org.springframework.web.util.ContentCachingResponseWrapper;

/**
 * Runs a request once for its key and user, and gives each retry the first response, as a guard of the gateway does. The build makes
 * the filter for Spring Boot 2.7 from this text, with javax instead of jakarta.
 */
final class IdempotencyFilter extends OncePerRequestFilter implements Ordered {
    private static final String GUARDED = IdempotencyFilter.class.getName();
    private static final String DEFAULT_HEADER = "Idempotency-Key";
    private static final Pattern BARE = Pattern.compile("[!-~&&[^\";,]]{1,255}");
    private static final Pattern QUOTED = Pattern.compile("\"([ -~&&[^\"\\\\]]{1,255})\"\\s*(;.*)?");
    private static final Pattern WAIT = Pattern.compile("(?i)(?:^|[,;\\s])wait=(\\d{1,9})(?:$|[,;\\s])");
    /** The service compares bodies up to this length, which a call of its API may have in any case; longer ones count as they are written. */
    private static final int LONGEST_SENT = 32 * 1024;
    /** What beside the body says what is asked for, unless a guard of the service has another list. */
    private static final List<String> ASKING = List.of("Content-Encoding", "SOAPAction", "X-Amz-Target", "If-Match", "Content-Range",
        "Destination", "Content-Disposition");
    private static final Set<String> NOT_KEPT = Set.of("content-type", "content-length", "transfer-encoding", "connection", "keep-alive",
        "date", "set-cookie", "idempotency-key-source", "preference-applied");
    /** 4xx that free the key: the request was not carried out, or may be corrected under its key. */
    private static final Set<Integer> FREE = Set.of(400, 401, 403, 407, 408, 421, 422, 425, 426, 429);
    private static final Set<String> DENIED = Set.of("org.springframework.security.access.AccessDeniedException",
        "org.springframework.security.core.AuthenticationException");
    private final Keylatch keylatch;
    private final KeylatchProperties.Idempotency settings;
    private final Supplier<Meters> meters;
    private final AntPathMatcher paths = new AntPathMatcher();

    IdempotencyFilter(Keylatch keylatch, KeylatchProperties.Idempotency settings, Supplier<Meters> meters) {
        this.keylatch = keylatch;
        this.settings = settings;
        this.meters = meters;
    }

    /** Behind those of Spring Security, which say who the user is. */
    @Override
    public int getOrder() {
        return settings.order;
    }

    @Override
    protected boolean shouldNotFilterAsyncDispatch() {
        return false;
    }

    /** Ends a request with a problem (RFC 9457). */
    private static final class Refusal extends RuntimeException {
        private static final long serialVersionUID = 1;
        private final int status;
        private final String code;
        private final String retry;
        private final Duration after;

        Refusal(int status, String code, String detail, String retry, Duration after) {
            super(detail);
            this.status = status;
            this.code = code;
            this.retry = retry;
            this.after = after;
        }
    }

    /** A request that runs now, for as long as it is asynchronous. */
    private final class Guarded implements AsyncListener {
        private final Run run;
        private final ContentCachingResponseWrapper response;
        private final Collection<String> before;
        private final AtomicBoolean hasEnded = new AtomicBoolean();

        Guarded(Run run, HttpServletResponse response) {
            this.run = run;
            this.response = new ContentCachingResponseWrapper(response);
            before = new HashSet<>(response.getHeaderNames());
        }

        @Override
        public void onComplete(AsyncEvent event) {
            end(this, 500, null, "its response did not come through Spring");
        }

        @Override
        public void onTimeout(AsyncEvent event) { }

        @Override
        public void onError(AsyncEvent event) { }

        @Override
        public void onStartAsync(AsyncEvent event) { }
    }

    @Override
    protected void doFilterInternal(HttpServletRequest request, HttpServletResponse response, FilterChain chain)
            throws ServletException, IOException {
        Guarded running = (Guarded) request.getAttribute(GUARDED);
        String path = request.getServletPath() + (request.getPathInfo() == null ? "" : request.getPathInfo());
        if (running != null) {
            carryOut(running, request, response, chain);
        } else if (settings.methods.stream().noneMatch(request.getMethod()::equalsIgnoreCase) || settings.paths.stream().noneMatch(each -> paths.match(each, path))) {
            chain.doFilter(request, response);
        } else {
            long asked = System.nanoTime();
            String outcome = "failed";
            try {
                outcome = guard(request, response, chain);
            } catch (Refusal refusal) {
                outcome = refusal.code;
                refuse(refusal, response);
            } finally {
                meters.get().took("keylatch.idempotency", asked, "outcome", outcome);
            }
        }
    }

    private String guard(HttpServletRequest request, HttpServletResponse response, FilterChain chain) throws ServletException, IOException {
        String sent = key(request);
        boolean isDerived = sent == null && settings.missing == KeylatchProperties.Missing.DERIVE;
        response.setHeader("Idempotency-Key-Source", sent != null ? "header" : isDerived ? "derived" : "none");
        if (sent == null && settings.missing == KeylatchProperties.Missing.REFUSE) {
            throw new Refusal(400, "key-required", "The header " + settings.header + " is missing.", "new-key", Duration.ZERO);
        }
        if (sent == null && !isDerived) {
            chain.doFilter(request, response);
            return "unguarded";
        }
        String user = request.getUserPrincipal() == null ? "" : "user:" + request.getUserPrincipal().getName();
        if (isDerived && user.isEmpty() && !settings.anonymous) {
            throw new Refusal(401, "principal-required", "Nobody has signed in.", "same-key", Duration.ZERO);
        }
        byte[] body = body(request);
        Run run = begin(isDerived ? "derived-" + digest(request, user, body) : sent, isDerived, user, body, request, response);
        if (run.answer().isPresent()) {
            replay(run.answer().get(), response);
            return "replayed";
        }
        Guarded guarded = new Guarded(run, response);
        request.setAttribute(GUARDED, guarded);
        request.setAttribute("keylatch.fencing-token", run.fencingToken());
        carryOut(guarded, new Read(request, body), guarded.response, chain);
        return "ran";
    }

    /** The key that the client sends, or null. */
    private String key(HttpServletRequest request) {
        List<String> values = Collections.list(request.getHeaders(settings.header));
        if (values.isEmpty()) {
            return null;
        }
        String value = values.get(0).trim();
        Matcher quoted = QUOTED.matcher(value);
        boolean isQuoted = quoted.matches();
        if (values.size() > 1 || !(isQuoted || BARE.matcher(value).matches())) {
            throw new Refusal(400, "invalid-key", settings.header + " is one key of 1 to 255 visible ASCII characters.", "new-key", Duration.ZERO);
        }
        return isQuoted ? quoted.group(1) : value;
    }

    private byte[] body(HttpServletRequest request) throws IOException {
        String type = String.valueOf(request.getContentType()).toLowerCase(Locale.ROOT);
        if (type.startsWith("multipart/")) {
            throw new Refusal(415, "multipart-unsupported", "A multipart body has no key here; the gateway takes it.", "never", Duration.ZERO);
        }
        int limit = (int) Math.min(settings.bodyLimit.toBytes(), Integer.MAX_VALUE - 1);
        // Of the form of a POST this gives what the container has read of its fields.
        byte[] body = new ServletServerHttpRequest(request).getBody().readNBytes(limit + 1);
        if (body.length == 0 && type.startsWith("application/x-www-form-urlencoded")) {
            // Spring's FormContentFilter has read that of another method.
            body = new ServletServerHttpRequest(new HttpServletRequestWrapper(request) {
                @Override
                public String getMethod() {
                    return "POST";
                }
            }).getBody().readNBytes(limit + 1);
        }
        if (body.length > limit) {
            throw new Refusal(413, "payload-too-large", "The body has more than " + limit + " bytes.", "never", Duration.ZERO);
        }
        return body;
    }

    private static String digest(HttpServletRequest request, String user, byte[] body) {
        try {
            MessageDigest digest = MessageDigest.getInstance("SHA-256");
            for (String part : new String[] {user, request.getMethod(), request.getRequestURI(), request.getQueryString(), request.getContentType()}) {
                byte[] bytes = String.valueOf(part).getBytes(StandardCharsets.UTF_8);
                digest.update((bytes.length + ":").getBytes(StandardCharsets.UTF_8));
                digest.update(bytes);
            }
            return Base64.getUrlEncoder().withoutPadding().encodeToString(digest.digest(body));
        } catch (NoSuchAlgorithmException impossible) {
            throw new IllegalStateException(impossible);
        }
    }

    private Run begin(String key, boolean isDerived, String user, byte[] body, HttpServletRequest request, HttpServletResponse response) {
        Map<String, List<String>> headers = new LinkedHashMap<>();
        ASKING.stream().filter(name -> request.getHeader(name) != null)
            .forEach(name -> headers.put(name, Collections.list(request.getHeaders(name))));
        Once once = keylatch.once(key).scope(request.getMethod(), request.getRequestURI(), user)
            .lease(settings.lease).retention(isDerived ? settings.window : settings.retention);
        once = body.length > LONGEST_SENT ? once.fingerprint(digest(request, user, body))
            : once.request(request.getQueryString(), request.getContentType(), headers, body);
        if (isDerived) {
            once = once.source("derived");
        } else if (!settings.header.equalsIgnoreCase(DEFAULT_HEADER)) {
            once = once.source("header:" + settings.header);
        }
        try {
            return once.begin(wait(isDerived, request, response));
        } catch (ProblemException problem) {
            if (problem.status() == 401 || problem.status() == 403) {
                logger.error("keylatch does not take the key of this program, so a request was refused", problem);
                throw new Refusal(503, "store-unavailable", "Nothing was done, as keylatch refuses this program.", "same-key", Duration.ofSeconds(1));
            }
            throw new Refusal(problem.status(), problem.code(), problem.getMessage(), problem.retry(), problem.retryAfter());
        } catch (UnreachableException none) {
            logger.warn("keylatch does not respond, so a request was refused", none);
            throw new Refusal(503, "store-unavailable", "Nothing was done, as keylatch does not respond.", "same-key", Duration.ofSeconds(1));
        } catch (InterruptedException interrupted) {
            Thread.currentThread().interrupt();
            throw new Refusal(503, "store-unavailable", "Nothing was done, as this thread was interrupted.", "same-key", Duration.ofSeconds(1));
        }
    }

    private Duration wait(boolean isDerived, HttpServletRequest request, HttpServletResponse response) {
        Matcher prefer = WAIT.matcher(String.valueOf(request.getHeader("Prefer")));
        if (!prefer.find()) {
            return isDerived ? settings.maxWait : Duration.ZERO;
        }
        Duration wait = Duration.ofSeconds(Math.min(Long.parseLong(prefer.group(1)), settings.maxWait.toSeconds()));
        response.setHeader("Preference-Applied", "wait=" + wait.toSeconds());
        return wait;
    }

    private void carryOut(Guarded guarded, HttpServletRequest request, HttpServletResponse response, FilterChain chain)
            throws ServletException, IOException {
        try {
            chain.doFilter(request, response);
        } catch (Throwable failed) {
            end(guarded, isDenied(failed) ? 403 : 500, null, failed.toString());
            throw failed;
        }
        if (request.isAsyncStarted()) {
            request.getAsyncContext().addListener(guarded);
        } else {
            ContentCachingResponseWrapper said = guarded.response;
            boolean isNotBegun = said.getStatus() == 503 && said.getHeader("Retry-After") != null;
            end(guarded, said.getStatus(), isNotBegun ? null : answer(guarded), isNotBegun ? null : "status " + said.getStatus());
            said.copyBodyToResponse();
        }
    }

    /** Whether Spring Security, outside of this filter, makes a 401 or a 403 of it. */
    private static boolean isDenied(Throwable failed) {
        for (Throwable why = failed; why != null; why = why.getCause()) {
            for (Class<?> type = why.getClass(); type != null; type = type.getSuperclass()) {
                if (DENIED.contains(type.getName())) {
                    return true;
                }
            }
        }
        return false;
    }

    /** Without an answer and without a reason nothing was done. The client gets its response also where the service cannot be told. */
    private void end(Guarded guarded, int status, Answer answer, String why) {
        if (guarded.hasEnded.getAndSet(true)) {
            return;
        }
        Run run = guarded.run;
        try {
            boolean isReleased = status >= 500 && settings.onFailure == KeylatchProperties.OnFailure.RELEASE;
            if (why == null || isReleased || FREE.contains(status)) {
                run.abandon();
            } else if (status >= 500) {
                run.fail(why);
            } else {
                run.complete(answer);
            }
        } catch (KeylatchException unsaid) {
            logger.warn("keylatch does not know what became of a request", unsaid);
        }
    }

    private static Answer answer(Guarded guarded) {
        ContentCachingResponseWrapper said = guarded.response;
        Answer answer = Answer.of(said.getStatus(), said.getContentAsByteArray());
        if (said.getContentType() != null) {
            answer = answer.header("Content-Type", said.getContentType());
        }
        for (String name : new HashSet<>(said.getHeaderNames())) {
            if (!guarded.before.contains(name) && !NOT_KEPT.contains(name.toLowerCase(Locale.ROOT))) {
                for (String value : said.getHeaders(name)) {
                    answer = answer.header(name, value);
                }
            }
        }
        return answer;
    }

    private static void replay(Answer answer, HttpServletResponse response) throws IOException {
        if (!answer.isKept()) {
            throw new Refusal(409, "answer-not-kept", "It was done, and its response was not kept.", "never", Duration.ZERO);
        }
        answer.headers().forEach((name, values) -> {
            response.setHeader(name, values.get(0));
            values.stream().skip(1).forEach(value -> response.addHeader(name, value));
        });
        response.setHeader("Idempotent-Replayed", "true");
        response.setHeader("Cache-Control", "no-store");
        byte[] body = answer.body();
        if (answer.status() >= 400 && body.length == 0) {
            // The program has the container or Spring write its errors.
            response.sendError(answer.status());
            return;
        }
        response.setStatus(answer.status());
        response.setContentLength(body.length);
        response.getOutputStream().write(body);
    }

    private static void refuse(Refusal refusal, HttpServletResponse response) throws IOException {
        Map<String, Object> problem = new LinkedHashMap<>();
        problem.put("type", "/problems/" + refusal.code);
        problem.put("status", refusal.status);
        problem.put("detail", refusal.getMessage());
        problem.put("code", refusal.code);
        problem.put("retry", refusal.retry);
        if (!refusal.after.isZero()) {
            problem.put("retry_after_ms", refusal.after.toMillis());
            response.setHeader("Retry-After", String.valueOf(refusal.after.plusMillis(999).toSeconds()));
        }
        byte[] body = Answer.json(refusal.status, problem).body();
        response.setStatus(refusal.status);
        response.setContentType("application/problem+json");
        response.setContentLength(body.length);
        response.getOutputStream().write(body);
    }

    /** A request whose body was read. */
    private static final class Read extends HttpServletRequestWrapper {
        private final ByteArrayInputStream body;

        Read(HttpServletRequest request, byte[] body) {
            super(request);
            this.body = new ByteArrayInputStream(body);
        }

        @Override
        public BufferedReader getReader() throws IOException {
            String encoding = getCharacterEncoding();
            return new BufferedReader(new InputStreamReader(body, encoding == null ? "ISO-8859-1" : encoding));
        }

        @Override
        public ServletInputStream getInputStream() {
            return new ServletInputStream() {
                @Override
                public int read() {
                    return body.read();
                }

                @Override
                public int read(byte[] into, int offset, int length) {
                    return body.read(into, offset, length);
                }

                @Override
                public boolean isFinished() {
                    return body.available() == 0;
                }

                @Override
                public boolean isReady() {
                    return true;
                }

                @Override
                public void setReadListener(ReadListener listener) {
                    throw new IllegalStateException("the body is there already");
                }
            };
        }
    }
}
