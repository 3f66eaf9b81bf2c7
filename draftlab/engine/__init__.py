"""The reference engine: speculative decoding in torch that logs all that it knows (extra `engine`)."""
