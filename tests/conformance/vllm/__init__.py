"""The hook against the real vLLM on a CPU; run by `run.py` in an environment of its own."""
