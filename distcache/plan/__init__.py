"""Plans: every section and blend that a configuration asks for, with sizes; pure data."""
