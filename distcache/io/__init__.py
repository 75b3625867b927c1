"""Files that appear whole, threads, and whether anything moves."""
