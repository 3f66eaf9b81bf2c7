"""Budget policies: how many draft tokens to verify, and whose. Arrays in, arrays out."""
