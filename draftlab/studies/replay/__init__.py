"""Online estimators over a log: replay, sweeps of constants, changes of traffic."""
