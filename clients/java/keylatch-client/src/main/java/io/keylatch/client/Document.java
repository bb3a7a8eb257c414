package io.keylatch.client;

import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Collections;
import java.util.List;
import java.util.Map;

/** The members of a response. What is missing, or of another type, reads as null or 0. */
final class Document {
    static final Document EMPTY = new Document(Collections.emptyMap());
    final Map<?, ?> members;

    Document(Object value) {
        members = value instanceof Map ? (Map<?, ?>) value : Collections.emptyMap();
    }

    /** Reads a body. Throws IllegalArgumentException where it is not an object. */
    static Document of(byte[] body) {
        Object value = Json.read(new String(body, StandardCharsets.UTF_8));
        if (!(value instanceof Map)) {
            throw new IllegalArgumentException("it has no members");
        }
        return new Document(value);
    }

    String text(String name) {
        Object value = members.get(name);
        return value instanceof String ? (String) value : null;
    }

    Long number(String name) {
        Object value = members.get(name);
        return value instanceof Long ? (Long) value : null;
    }

    long count(String name) {
        Long value = number(name);
        return value == null ? 0 : value;
    }

    Document document(String name) {
        return new Document(members.get(name));
    }

    boolean has(String name) {
        return members.get(name) != null;
    }

    List<Document> documents(String name) {
        List<Document> documents = new ArrayList<>();
        if (members.get(name) instanceof List) {
            for (Object each : (List<?>) members.get(name)) {
                documents.add(new Document(each));
            }
        }
        return documents;
    }
}
