"""Report: a run as one HTML file that needs no network, from its run file, its record, or both."""
