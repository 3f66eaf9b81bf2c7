"""Studies: a log in, a result of tidy tables out, one module or package each."""
