"""The draft log on disk: a crash-safe writer, a lazy reader and the checks of its content."""
