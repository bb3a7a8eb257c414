/** The Java client of keylatch: locks with fencing tokens over HTTP, and things done once. */
module io.keylatch.client {
    requires transitive java.net.http;

    exports io.keylatch.client;
}
