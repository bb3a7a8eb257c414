package io.keylatch.client;

import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.regex.Matcher;
import java.util.regex.Pattern;
import java.util.stream.Collectors;
import java.util.stream.StreamSupport;

/** JSON (RFC 8259) as maps, lists, strings, {@code Long}, {@code Double}, booleans and null. */
final class Json {
    private static final Pattern NUMBER = Pattern.compile("-?(0|[1-9][0-9]*)(\\.[0-9]+)?([eE][+-]?[0-9]+)?");
    private static final int DEEPEST = 200;
    private final String text;
    private int at;

    private Json(String text) {
        this.text = text;
    }

    /** Reads a text, or throws IllegalArgumentException. */
    static Object read(String text) {
        Json json = new Json(text);
        Object value = json.value(0);
        json.blank();
        if (json.at < text.length()) {
            throw json.bad();
        }
        return value;
    }

    private Object value(int depth) {
        blank();
        if (at == text.length() || depth > DEEPEST) {
            throw bad();
        }
        switch (text.charAt(at)) {
            case '{':
                return object(depth);
            case '[':
                return array(depth);
            case '"':
                return string();
            case 't':
                return word("true", true);
            case 'f':
                return word("false", false);
            case 'n':
                return word("null", null);
            default:
                return number();
        }
    }

    private Map<String, Object> object(int depth) {
        Map<String, Object> members = new LinkedHashMap<>();
        each('}', () -> {
            blank();
            String name = string();
            expect(':');
            members.put(name, value(depth + 1));
        });
        return members;
    }

    private List<Object> array(int depth) {
        List<Object> values = new ArrayList<>();
        each(']', () -> values.add(value(depth + 1)));
        return values;
    }

    private void each(char end, Runnable one) {
        at++;
        if (isNext(end)) {
            return;
        }
        do {
            one.run();
        } while (isNext(','));
        expect(end);
    }

    private String string() {
        if (at == text.length() || text.charAt(at) != '"') {
            throw bad();
        }
        StringBuilder read = new StringBuilder();
        while (++at < text.length()) {
            char letter = text.charAt(at);
            if (letter == '"') {
                at++;
                return read.toString();
            } else if (letter < ' ') {
                throw bad();
            }
            read.append(letter == '\\' ? escaped() : letter);
        }
        throw bad();
    }

    private char escaped() {
        if (++at == text.length()) {
            throw bad();
        }
        char letter = text.charAt(at);
        int known = "\"\\/bfnrt".indexOf(letter);
        if (known >= 0) {
            return "\"\\/\b\f\n\r\t".charAt(known);
        }
        String code = text.substring(at + 1, Math.min(at + 5, text.length()));
        if (letter != 'u' || !code.matches("[0-9a-fA-F]{4}")) {
            throw bad();
        }
        at += 4;
        return (char) Integer.parseInt(code, 16);
    }

    private Object number() {
        Matcher number = NUMBER.matcher(text).region(at, text.length());
        if (!number.lookingAt()) {
            throw bad();
        }
        at = number.end();
        // 18 digits fit a long.
        boolean isLong = number.group(2) == null && number.group(3) == null && number.group(1).length() <= 18;
        return isLong ? (Object) Long.valueOf(number.group()) : (Object) Double.valueOf(number.group());
    }

    private Object word(String word, Object value) {
        if (!text.startsWith(word, at)) {
            throw bad();
        }
        at += word.length();
        return value;
    }

    private boolean isNext(char letter) {
        blank();
        boolean isNext = at < text.length() && text.charAt(at) == letter;
        at += isNext ? 1 : 0;
        return isNext;
    }

    private void expect(char letter) {
        if (!isNext(letter)) {
            throw bad();
        }
    }

    private void blank() {
        while (at < text.length() && " \t\r\n".indexOf(text.charAt(at)) >= 0) {
            at++;
        }
    }

    private IllegalArgumentException bad() {
        return new IllegalArgumentException("no JSON at " + at);
    }

    /** Writes maps, iterables, strings, numbers, booleans and null; of all else what its {@code toString} says. */
    static String write(Object value) {
        if (value instanceof Map) {
            return ((Map<?, ?>) value).entrySet().stream().map(member ->
                quoted(String.valueOf(member.getKey())) + ":" + write(member.getValue())).collect(Collectors.joining(",", "{", "}"));
        } else if (value instanceof Iterable) {
            return StreamSupport.stream(((Iterable<?>) value).spliterator(), false).map(Json::write)
                .collect(Collectors.joining(",", "[", "]"));
        }
        String text = String.valueOf(value);
        if (value == null || value instanceof Boolean || value instanceof Number) {
            return text.matches("NaN|-?Infinity") ? "null" : text;
        }
        return quoted(text);
    }

    private static String quoted(String value) {
        StringBuilder text = new StringBuilder("\"");
        value.chars().forEach(letter -> {
            if (letter == '"' || letter == '\\') {
                text.append('\\').append((char) letter);
            } else if (letter < ' ') {
                text.append(String.format("\\u%04x", letter));
            } else {
                text.append((char) letter);
            }
        });
        return text.append('"').toString();
    }
}
