package io.keylatch.client;

import java.nio.ByteBuffer;
import java.nio.charset.CharacterCodingException;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Base64;
import java.util.Collections;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;

/** What a thing came to: each repeat of it gets the same. It does not change. */
public final class Answer {
    private final int status;
    private final Map<String, List<String>> headers;
    private final byte[] body;
    private final boolean isKept;

    private Answer(int status, Map<String, List<String>> headers, byte[] body, boolean isKept) {
        this.status = status;
        this.headers = Collections.unmodifiableMap(headers);
        this.body = body;
        this.isKept = isKept;
    }

    /** An answer of any bytes.
     * @param status of HTTP
     * @param body at most as long as the service allows
     * @return the answer */
    public static Answer of(int status, byte[] body) {
        return new Answer(status, new TreeMap<>(String.CASE_INSENSITIVE_ORDER), body.clone(), true);
    }

    /** An answer of a text, with status 200.
     * @param body the text
     * @return the answer */
    public static Answer text(String body) {
        return of(200, body.getBytes(StandardCharsets.UTF_8));
    }

    /** An answer of JSON.
     * @param status of HTTP
     * @param value strings, numbers, booleans, null, and lists and maps of them; of all else what its {@code toString} says
     * @return the answer, with its Content-Type */
    public static Answer json(int status, Object value) {
        return of(status, Json.write(value).getBytes(StandardCharsets.UTF_8)).header("Content-Type", "application/json");
    }

    /** Adds a header.
     * @param name of the header
     * @param value of the header
     * @return the answer with it */
    public Answer header(String name, String value) {
        Map<String, List<String>> more = new TreeMap<>(String.CASE_INSENSITIVE_ORDER);
        more.putAll(headers);
        List<String> values = new ArrayList<>(more.getOrDefault(name, List.of()));
        values.add(value);
        more.put(name, List.copyOf(values));
        return new Answer(status, more, body, isKept);
    }

    /** How it went.
     * @return a status of HTTP */
    public int status() {
        return status;
    }

    /** What else is said.
     * @return values by name, of which the case does not count */
    public Map<String, List<String>> headers() {
        return headers;
    }

    /** What it came to.
     * @return bytes of the caller's own */
    public byte[] body() {
        return body.clone();
    }

    /** The body as UTF-8.
     * @return the text */
    public String text() {
        return new String(body, StandardCharsets.UTF_8);
    }

    /** Whether the service has kept it whole.
     * @return false for a repeat's answer that was too large: it has its status alone */
    public boolean isKept() {
        return isKept;
    }

    /** The answer as the API has it. */
    Map<String, Object> members() {
        Map<String, Object> members = new LinkedHashMap<>();
        members.put("status", status);
        if (!headers.isEmpty()) {
            members.put("headers", headers);
        }
        try {
            members.put("body", StandardCharsets.UTF_8.newDecoder().decode(ByteBuffer.wrap(body)).toString());
        } catch (CharacterCodingException bytes) {
            members.put("body_base64", Base64.getEncoder().encodeToString(body));
        }
        return members;
    }

    /** The answer that a record has. */
    static Answer of(Document said) {
        Document answer = said.document("answer");
        if (!said.has("answer")) {
            return new Answer((int) said.count("status"), Map.of(), new byte[0], false);
        }
        byte[] body = new byte[0];
        if (answer.text("body") != null) {
            body = answer.text("body").getBytes(StandardCharsets.UTF_8);
        } else if (answer.text("body_base64") != null) {
            body = Base64.getDecoder().decode(answer.text("body_base64"));
        }
        Answer read = of((int) answer.count("status"), body);
        for (Map.Entry<?, ?> header : answer.document("headers").members.entrySet()) {
            for (Object value : (Iterable<?>) header.getValue()) {
                read = read.header(String.valueOf(header.getKey()), String.valueOf(value));
            }
        }
        return read;
    }
}
