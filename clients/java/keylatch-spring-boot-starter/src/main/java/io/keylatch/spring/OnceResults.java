package io.keylatch.spring;

import java.io.IOException;
import java.lang.reflect.Type;

/** How what a method with {@link Once} returns is kept. The starter has one of the program's Jackson; a bean of your own replaces it. */
public interface OnceResults {
    /** Writes a result.
     * @param result what the method returned, not null
     * @return the bytes that are kept
     * @throws IOException where it cannot be written: the outcome is then unknown */
    byte[] write(Object result) throws IOException;

    /** Reads a result.
     * @param bytes what was kept
     * @param type what the method returns
     * @return the result
     * @throws IOException where it cannot be read */
    Object read(byte[] bytes, Type type) throws IOException;
}
