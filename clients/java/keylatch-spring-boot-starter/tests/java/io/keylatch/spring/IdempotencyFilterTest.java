package io.keylatch.spring;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;
import static org.springframework.test.web.servlet.request.MockMvcRequestBuilders.asyncDispatch;
import static org.springframework.test.web.servlet.request.MockMvcRequestBuilders.multipart;
import static org.springframework.test.web.servlet.request.MockMvcRequestBuilders.post;
import static org.springframework.test.web.servlet.result.MockMvcResultMatchers.content;
import static org.springframework.test.web.servlet.result.MockMvcResultMatchers.header;
import static org.springframework.test.web.servlet.result.MockMvcResultMatchers.jsonPath;
import static org.springframework.test.web.servlet.result.MockMvcResultMatchers.request;
import static org.springframework.test.web.servlet.result.MockMvcResultMatchers.status;

import com.sun.net.httpserver.HttpServer;
import io.keylatch.client.Keylatch;
import java.net.InetSocketAddress;
import java.net.URI;
import java.net.http.HttpClient;
import java.net.http.HttpRequest;
import java.net.http.HttpResponse;
import java.time.Duration;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.UUID;
import java.util.concurrent.CompletableFuture;
import org.junit.jupiter.api.BeforeEach;
import org.junit.jupiter.api.Test;
import org.springframework.beans.factory.annotation.Autowired;
import org.springframework.test.web.servlet.MockMvc;
import org.springframework.test.web.servlet.MvcResult;
import org.springframework.test.web.servlet.ResultActions;
import org.springframework.test.web.servlet.request.MockHttpServletRequestBuilder;
import org.springframework.test.web.servlet.setup.MockMvcBuilders;
import org.springframework.web.context.WebApplicationContext;

/** A request runs once for its key, its user and its route. */
class IdempotencyFilterTest extends StarterTest {
    @Autowired private Shop.Orders orders;
    @Autowired private WebApplicationContext context;
    @Autowired private IdempotencyFilter filter;
    private final String key = UUID.randomUUID().toString();
    private MockMvc shop;

    @BeforeEach
    void noOrders() {
        orders.made.set(0);
        orders.paying = new CompletableFuture<>();
        shop = shop(filter);
    }

    private MockMvc shop(IdempotencyFilter by) {
        return MockMvcBuilders.webAppContextSetup(context).addFilters(by).build();
    }

    private MockMvc shop(KeylatchProperties.Missing missing, boolean isAnonymous) {
        KeylatchProperties.Idempotency changed = new KeylatchProperties.Idempotency();
        changed.missing = missing;
        changed.anonymous = isAnonymous;
        changed.methods = List.of("post");
        changed.window = Duration.ofHours(1);
        return shop(new IdempotencyFilter(keylatch, changed, () -> (name, since, tags) -> { }));
    }

    private static MockHttpServletRequestBuilder json(String path, String body) {
        return post(path).contentType("application/json").content(body);
    }

    private ResultActions order(String path) throws Exception {
        return shop.perform(json(path, "{\"amount\":5}").header("Idempotency-Key", key));
    }

    @Test
    void retryGetsTheFirstResponse() throws Exception {
        order("/orders").andExpect(status().isCreated()).andExpect(jsonPath("$.no").value(1)).andExpect(jsonPath("$.fenced").value(true))
            .andExpect(header().string("Idempotency-Key-Source", "header")).andExpect(header().doesNotExist("Idempotent-Replayed"));
        shop.perform(json("/orders", "{ \"amount\" : 5 }").header("Idempotency-Key", '"' + key + '"')).andExpect(status().isCreated())
            .andExpect(jsonPath("$.no").value(1)).andExpect(header().string("Location", "/orders/1"))
            .andExpect(header().stringValues("X-Piece", "a", "b")).andExpect(content().contentTypeCompatibleWith("application/json"))
            .andExpect(header().string("Idempotent-Replayed", "true")).andExpect(header().string("Cache-Control", "no-store"));
        assertEquals(1, orders.made.get());
        shop.perform(json("/orders", "{\"amount\":6}").header("Idempotency-Key", key)).andExpect(status().isUnprocessableEntity())
            .andExpect(jsonPath("$.code").value("idempotency-key-reused"));
    }

    @Test
    void usersAndRoutesAreApart() throws Exception {
        order("/orders");
        shop.perform(json("/orders", "{\"amount\":5}").header("Idempotency-Key", key).principal(() -> "ann"))
            .andExpect(jsonPath("$.no").value(2));
        order("/orders/status/201").andExpect(content().string("made 3"));
        shop.perform(post("/search")).andExpect(content().string("found 4"));
    }

    @Test
    void keyIsReadAsTheGatewayReadsIt() throws Exception {
        shop.perform(json("/orders", "{}")).andExpect(status().isBadRequest()).andExpect(jsonPath("$.code").value("key-required"))
            .andExpect(header().string("Idempotency-Key-Source", "none"));
        for (String bad : new String[] {"", "a;b", "\"a", "é", "a b"}) {
            shop.perform(json("/orders", "{}").header("Idempotency-Key", bad)).andExpect(jsonPath("$.code").value("invalid-key"));
        }
        shop.perform(json("/orders", "{}").header("Idempotency-Key", "a", "b")).andExpect(jsonPath("$.code").value("invalid-key"));
        shop.perform(json("/orders", "{\"text\":\"" + "x".repeat(1024) + "\"}").header("Idempotency-Key", key))
            .andExpect(status().is(413));
        shop.perform(multipart("/orders").header("Idempotency-Key", key)).andExpect(status().is(415));
        assertEquals(0, orders.made.get());
    }

    @Test
    void statusSaysWhatBecomesOfTheKey() throws Exception {
        for (int status : new int[] {400, 401, 403, 422, 429}) {
            order("/orders/status/" + status);
            order("/orders/status/" + status).andExpect(status().is(status)).andExpect(header().doesNotExist("Idempotent-Replayed"));
        }
        order("/orders/busy");
        order("/orders/busy").andExpect(status().is(503));
        assertEquals(12, orders.made.get());
        for (int status : new int[] {204, 302, 404, 409}) {
            order("/orders/status/" + status);
            order("/orders/status/" + status).andExpect(status().is(status)).andExpect(header().string("Idempotent-Replayed", "true"));
        }
        order("/orders/none");
        assertEquals(404, order("/orders/none").andReturn().getResponse().getStatus());
        assertEquals(17, orders.made.get());
        order("/orders/status/500").andExpect(status().is(500));
        order("/orders/status/500").andExpect(status().isConflict()).andExpect(jsonPath("$.code").value("outcome-unknown"))
            .andExpect(jsonPath("$.retry").value("never"));
    }

    @Test
    void exceptionLeavesTheOutcomeUnknown() throws Exception {
        assertThrows(Exception.class, () -> order("/orders/bug"));
        order("/orders/bug").andExpect(jsonPath("$.code").value("outcome-unknown"));
        assertEquals(1, orders.made.get());
    }

    /** Spring Security has it be a 403 outside of this filter. */
    @Test
    void requestThatIsDeniedLeavesItsKeyFree() throws Exception {
        assertThrows(Exception.class, () -> order("/orders/denied"));
        assertThrows(Exception.class, () -> order("/orders/denied"));
        assertEquals(2, orders.made.get());
    }

    @Test
    void secondClickWaitsForAnAsynchronousFirst() throws Exception {
        MvcResult first = order("/payments").andExpect(request().asyncStarted()).andReturn();
        order("/payments").andExpect(status().isConflict()).andExpect(jsonPath("$.code").value("request-in-progress"))
            .andExpect(header().exists("Retry-After"));
        CompletableFuture<ResultActions> second = CompletableFuture.supplyAsync(() -> {
            try {
                return shop.perform(json("/payments", "{\"amount\":5}").header("Idempotency-Key", key).header("Prefer", "respond-async, wait=20"));
            } catch (Exception failed) {
                throw new IllegalStateException(failed);
            }
        });
        orders.paying.complete("paid");
        shop.perform(asyncDispatch(first)).andExpect(content().string("paid"));
        second.join().andExpect(content().string("paid")).andExpect(header().string("Idempotent-Replayed", "true"))
            .andExpect(header().string("Preference-Applied", "wait=20"));
        assertEquals(1, orders.made.get());
    }

    @Test
    void requestWithoutAKeyPassesOrGetsOne() throws Exception {
        MockMvc passing = shop(KeylatchProperties.Missing.PASS, false);
        passing.perform(post("/search")).andExpect(content().string("found 1")).andExpect(header().string("Idempotency-Key-Source", "none"));
        MockMvc deriving = shop(KeylatchProperties.Missing.DERIVE, false);
        deriving.perform(post("/search")).andExpect(status().isUnauthorized()).andExpect(jsonPath("$.code").value("principal-required"));
        for (int click = 0; click < 2; click++) {
            deriving.perform(post("/search?q=" + key).principal(() -> "ann")).andExpect(content().string("found 2"))
                .andExpect(header().string("Idempotency-Key-Source", "derived"));
        }
        deriving.perform(post("/search?q=" + key).principal(() -> "bob")).andExpect(content().string("found 3"));
        MockMvc anonymous = shop(KeylatchProperties.Missing.DERIVE, true);
        anonymous.perform(post("/search?q=" + key)).andExpect(content().string("found 4"));
        anonymous.perform(post("/search?q=" + key)).andExpect(content().string("found 4"));
        anonymous.perform(post("/search?q=" + key).content("x")).andExpect(content().string("found 5"));
    }

    /** Otherwise one could take the key of what others are about to send. */
    @Test
    void clientCannotSendADerivedKey() throws Exception {
        MockMvc anonymous = shop(KeylatchProperties.Missing.DERIVE, true);
        Set<String> before = keys();
        anonymous.perform(post("/search?q=" + key)).andExpect(content().string("found 1"));
        Set<String> derived = keys();
        derived.removeAll(before);
        anonymous.perform(post("/search?q=" + key).header("Idempotency-Key", derived.iterator().next())).andExpect(content().string("found 2"));
    }

    private Set<String> keys() {
        Set<String> keys = new HashSet<>();
        ((List<?>) keylatch.call("GET", "/v1/idempotency", null).get("records")).forEach(each -> keys.add((String) ((Map<?, ?>) each).get("key")));
        return keys;
    }

    @Test
    void longBodyIsComparedToo() throws Exception {
        MockMvc passing = shop(KeylatchProperties.Missing.PASS, false);
        for (int click = 0; click < 2; click++) {
            passing.perform(post("/search").header("Idempotency-Key", key).content("x".repeat(200_000))).andExpect(content().string("found 1"));
        }
        passing.perform(post("/search").header("Idempotency-Key", key).content("y".repeat(200_000)))
            .andExpect(jsonPath("$.code").value("idempotency-key-reused"));
    }

    /** The user is not the one who has to sign in. */
    @Test
    void keyOfTheProgramThatIsRefusedIsNoMatterOfTheUser() throws Exception {
        HttpServer refusing = HttpServer.create(new InetSocketAddress("127.0.0.1", 0), 0);
        refusing.createContext("/", exchange -> {
            exchange.sendResponseHeaders(401, -1);
            exchange.close();
        });
        refusing.start();
        Keylatch unknown = Keylatch.builder().url("http://127.0.0.1:" + refusing.getAddress().getPort()).build();
        try {
            shop(new IdempotencyFilter(unknown, new KeylatchProperties.Idempotency(), () -> (name, since, tags) -> { }))
                .perform(post("/search").header("Idempotency-Key", key)).andExpect(status().isServiceUnavailable())
                .andExpect(jsonPath("$.code").value("store-unavailable"));
        } finally {
            refusing.stop(0);
        }
    }

    @Test
    void formIsReadByTheMethodToo() throws Exception {
        MockHttpServletRequestBuilder form = post("/orders/form").contentType("application/x-www-form-urlencoded").param("amount", "5")
            .header("Idempotency-Key", key);
        shop.perform(form).andExpect(content().string("1:5"));
        shop.perform(form).andExpect(content().string("1:5"));
        form = post("/orders/form").contentType("application/x-www-form-urlencoded").param("amount", "6").header("Idempotency-Key", key);
        shop.perform(form).andExpect(status().isUnprocessableEntity());
    }

    private HttpResponse<String> overTheWire(String path, String type, String body) throws Exception {
        return overTheWire("POST", path, type, body);
    }

    private HttpResponse<String> overTheWire(String method, String path, String type, String body) throws Exception {
        URI uri = URI.create("http://localhost:" + context.getEnvironment().getProperty("local.server.port") + path);
        HttpRequest request = HttpRequest.newBuilder(uri).header("Content-Type", type).header("Idempotency-Key", key)
            .method(method, HttpRequest.BodyPublishers.ofString(body)).build();
        return HttpClient.newHttpClient().send(request, HttpResponse.BodyHandlers.ofString());
    }

    /** Nobody has seen its response, and it is not renewed for ever. */
    @Test
    void asynchronousRequestThatEndsByItselfIsUnknown() throws Exception {
        CompletableFuture<Integer> first = CompletableFuture.supplyAsync(() -> {
            try {
                return overTheWire("/orders/raw", "text/plain", "5").statusCode();
            } catch (Exception failed) {
                throw new IllegalStateException(failed);
            }
        });
        while (orders.made.get() == 0) {
            Thread.onSpinWait();
        }
        assertTrue(overTheWire("/orders/raw", "text/plain", "5").body().contains("request-in-progress"));
        orders.paying.complete("paid");
        assertEquals(200, first.join());
        String said = "request-in-progress";
        while (said.contains("request-in-progress")) {
            said = overTheWire("/orders/raw", "text/plain", "5").body();
        }
        assertTrue(said.contains("outcome-unknown"), said);
        assertEquals(1, orders.made.get());
    }

    /** Where nothing of the server is played: bodies, asynchronous requests, errors. */
    @Test
    void realServerHasTheFilter() throws Exception {
        orders.paying.complete("paid");
        for (boolean isReplayed : new boolean[] {false, true}) {
            for (HttpResponse<String> said : List.of(overTheWire("/orders", "application/json", "{\"amount\":5}"),
                overTheWire("/orders/form", "application/x-www-form-urlencoded", "amount=5"), overTheWire("/payments", "text/plain", "5"),
                overTheWire("/orders/none", "text/plain", "5"))) {
                assertEquals(isReplayed, said.headers().firstValue("Idempotent-Replayed").isPresent(), said.uri() + ": " + said);
                assertEquals(said.uri().getPath().equals("/orders/none"), said.statusCode() == 404);
                assertTrue(said.body().matches("(?s).*(fenced.*|2:5|paid|Not Found.*)"), said.body());
            }
        }
        assertEquals(4, orders.made.get());
        overTheWire("/orders/bug", "text/plain", "5");
        assertTrue(overTheWire("/orders/bug", "text/plain", "5").body().contains("outcome-unknown"));
    }

    /** A filter of Spring has read it before, as the container reads forms of POST alone. */
    @Test
    void formOfAPatchIsCompared() throws Exception {
        String form = "application/x-www-form-urlencoded";
        for (int click = 0; click < 2; click++) {
            assertEquals("1:5", overTheWire("PATCH", "/orders/form", form, "amount=5").body());
        }
        assertEquals(422, overTheWire("PATCH", "/orders/form", form, "amount=6").statusCode());
    }

    @Test
    void filterIsBehindThatOfSpringSecurity() {
        assertTrue(filter.getOrder() > -100);
    }
}
