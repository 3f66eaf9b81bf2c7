"""Online estimators of acceptance: vLLM's, exactly, and its rivals."""
