package io.keylatch.client;

import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;

/** JSON (RFC 8259) as maps, lists, strings, {@code Long}, {@code Double}, booleans and null. */
final class Json {
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
        at++;
        if (isNext('}')) {
            return members;
        }
        do {
            blank();
            String name = string();
            expect(':');
            members.put(name, value(depth + 1));
        } while (isNext(','));
        expect('}');
        return members;
    }

    private List<Object> array(int depth) {
        List<Object> values = new ArrayList<>();
        at++;
        if (isNext(']')) {
            return values;
        }
        do {
            values.add(value(depth + 1));
        } while (isNext(','));
        expect(']');
        return values;
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
        if (letter != 'u' || at + 4 >= text.length()) {
            throw bad();
        }
        int code = 0;
        for (int end = at + 4; at < end; ) {
            int digit = Character.digit(text.charAt(++at), 16);
            if (digit < 0 || text.charAt(at) > 'f') {
                throw bad();
            }
            code = code * 16 + digit;
        }
        return (char) code;
    }

    private Object number() {
        int from = at;
        isNextOf("-");
        int first = at;
        boolean isWhole = true;
        int digits = digits();
        if (digits == 0 || (digits > 1 && text.charAt(first) == '0')) {
            throw bad();
        }
        if (isNextOf(".")) {
            isWhole = false;
            requireDigits();
        }
        if (isNextOf("eE")) {
            isWhole = false;
            isNextOf("+-");
            requireDigits();
        }
        String number = text.substring(from, at);
        // 18 digits fit a long.
        return isWhole && digits <= 18 ? (Object) Long.valueOf(number) : (Object) Double.valueOf(number);
    }

    private int digits() {
        int from = at;
        while (at < text.length() && text.charAt(at) >= '0' && text.charAt(at) <= '9') {
            at++;
        }
        return at - from;
    }

    private void requireDigits() {
        if (digits() == 0) {
            throw bad();
        }
    }

    private boolean isNextOf(String letters) {
        boolean isOf = at < text.length() && letters.indexOf(text.charAt(at)) >= 0;
        at += isOf ? 1 : 0;
        return isOf;
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
        return isNextOf(String.valueOf(letter));
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
        StringBuilder text = new StringBuilder();
        write(value, text);
        return text.toString();
    }

    private static void write(Object value, StringBuilder text) {
        if (value instanceof Map) {
            String before = "{";
            for (Map.Entry<?, ?> member : ((Map<?, ?>) value).entrySet()) {
                text.append(before);
                quote(String.valueOf(member.getKey()), text);
                text.append(':');
                write(member.getValue(), text);
                before = ",";
            }
            text.append(before.equals("{") ? "{}" : "}");
        } else if (value instanceof Iterable) {
            String before = "[";
            for (Object each : (Iterable<?>) value) {
                text.append(before);
                write(each, text);
                before = ",";
            }
            text.append(before.equals("[") ? "[]" : "]");
        } else if (value == null || value instanceof Boolean || (value instanceof Number && isFinite((Number) value))) {
            text.append(value);
        } else if (value instanceof Number) {
            text.append("null");
        } else {
            quote(value.toString(), text);
        }
    }

    private static boolean isFinite(Number number) {
        return !(number instanceof Double || number instanceof Float) || Double.isFinite(number.doubleValue());
    }

    private static void quote(String value, StringBuilder text) {
        text.append('"');
        for (int i = 0; i < value.length(); i++) {
            char letter = value.charAt(i);
            if (letter == '"' || letter == '\\') {
                text.append('\\').append(letter);
            } else if (letter < ' ') {
                text.append(String.format("\\u%04x", (int) letter));
            } else {
                text.append(letter);
            }
        }
        text.append('"');
    }
}
