"""Plan, executor, worker: which cells a suite asks for, and getting them computed once each."""
