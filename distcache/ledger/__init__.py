"""What training sees, saw and has left: traces, reports, and the rest of corpora."""
