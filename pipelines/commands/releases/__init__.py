"""Commands for releases: start, watch, cancel, roll back, report, judge again; and for requests to production."""
