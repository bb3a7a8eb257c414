/** The Java client of keylatch. {@link io.keylatch.client.Keylatch} is where to begin. */
package io.keylatch.client;
