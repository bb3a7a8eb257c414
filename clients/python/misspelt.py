"""What mypy has to refuse: it fails where one of these lines is no error."""

import keylatch

keylatch.lock("a", wiat=3)  # type: ignore[call-arg]
keylatch.hold("a", enty="b")  # type: ignore[call-arg]
keylatch.once("a", fingerprint=3)  # type: ignore[arg-type]
