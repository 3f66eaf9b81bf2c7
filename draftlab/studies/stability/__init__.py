"""Whether coefficients hold across workloads, pairs, time and sample size."""
