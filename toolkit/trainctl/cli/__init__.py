"""The command line: parse, call a use case, print. No decisions, no I/O of its own."""
