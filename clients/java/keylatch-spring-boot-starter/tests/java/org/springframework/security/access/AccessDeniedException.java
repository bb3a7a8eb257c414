package org.springframework.security.access;

/** In place of that of Spring Security, which the tests do without. */
public class AccessDeniedException extends RuntimeException {
    private static final long serialVersionUID = 1;
}
