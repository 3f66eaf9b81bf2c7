"""Whether predictors and policies keep the target's output distribution."""
