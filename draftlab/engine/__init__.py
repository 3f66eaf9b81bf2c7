"""The reference engine: speculative decoding in torch, logged in full (extra `engine`)."""
