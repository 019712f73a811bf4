"""Commands about releases: start, watch, cancel, roll back, report, judge again; and requests to production."""
