package io.keylatch.client;

/** Reads server-sent events (WHATWG HTML, section 9.2). */
abstract class Events implements Request.Lines {
    private String type = "";
    private final StringBuilder data = new StringBuilder();

    /** Gets an event, and what its data says. */
    abstract void event(String kind, Document said);

    /** Hears of each line, and so of each comment. */
    void heard() { }

    @Override
    public final void line(String line) {
        heard();
        if (line.startsWith("event:")) {
            type = line.substring(6).trim();
        } else if (line.startsWith("data:")) {
            data.append(line.substring(5).trim());
        } else if (line.isEmpty() && !type.isEmpty()) {
            String kind = type;
            Document said;
            try {
                said = data.length() == 0 ? Document.EMPTY : new Document(Json.read(data.toString()));
            } catch (IllegalArgumentException bad) {
                said = Document.EMPTY;
            }
            type = "";
            data.setLength(0);
            event(kind, said);
        }
    }
}
