"""Benchmarks: cases in, checked and timed rows out.  The command line parses and calls this package."""
