"""Pure decisions: facts in, decision out. No clock, no file, no process, no torch."""
