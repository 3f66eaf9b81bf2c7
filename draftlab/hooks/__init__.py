"""Hooks into serving engines: live traffic into the draft log (extra `vllm`)."""
